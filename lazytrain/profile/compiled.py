"""Save levels of a compiled layer, measured as the executor runs it.

A level says how much of a layer's forward is kept for its backward; the rest is
recomputed inside the compiled backward. Time and bytes are read from the same body and
the same kept graph that training uses, on one resident layer.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lazytrain.errors import InvalidInput
from lazytrain.executor.bodies import Bodies
from lazytrain.executor.handles import Rebinder
from lazytrain.executor.layers import LayerRunner, Place
from lazytrain.executor.layout import Layout
from lazytrain.models.decoder import Decoder, layer_part
from lazytrain.profile.menu import MENU
from lazytrain.records import LayerCost, SaveLevel

REPEATS = 7


@dataclass(frozen=True)
class Reading:
    """One body at one level: median seconds, bytes kept, bytes at the peak."""

    forward_s: float
    backward_s: float
    kept_bytes: int
    workspace_bytes: int
    compile_s: float


class ResidentLayer:
    """One layer of a model on the device with random weights.

    Args:
        config: Hugging Face configuration of the model.
        index: Layer to build; others of its type cost the same.
        shape: ``[micro_batch, tokens]`` of one pass.
        device: Where it runs.
        dtype: Dtype of weights and hidden states.
    """

    def __init__(
        self,
        config: Any,
        index: int,
        shape: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._decoder = Decoder(config)
        self._part = self._decoder.parts[1 + index]
        self._layout = Layout.of(self._part.tensors, dtype.itemsize)
        self._flat = torch.zeros(self._layout.numel, dtype=dtype, device=device)
        tensors = self._decoder.initial_tensors(self._part, 0, device)
        for name, view in self._layout.named_views(self._flat).items():
            view.copy_(tensors[name])
        full = (*shape, self._decoder.hidden_size)
        self._hidden = torch.randn(full, dtype=dtype, device=device)
        self._gradient = torch.randn_like(self._hidden)
        self._rotary = self._decoder.rotary(shape[1], device, dtype)
        self._device = device
        self.num_parameters = self._part.num_parameters

    def read(self, body: str, level: str, attention: str = "cudnn") -> Reading:
        """Time one body at one save level."""
        owners = {
            layer_part(0): self._flat,
            "boundary.0": self._hidden.flatten(),
        }
        rebinder = Rebinder(owners.__getitem__)
        kind = self._part.layer_type
        bodies = Bodies(
            self._decoder, {kind: list(self._part.tensors)}, body, attention
        )
        runner = LayerRunner(bodies, {kind: self._layout}, rebinder)
        runner.rotary = self._rotary
        place = Place(
            0,
            kind,
            layer_part(0),
            "boundary.0",
            0,
            self._flat,
            owners["boundary.0"],
            level,
        )
        compile_s, _ = self._pass(runner, place)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        times = [self._pass(runner, place) for _ in range(REPEATS)]
        peak = torch.cuda.max_memory_allocated(self._device) - before
        return Reading(
            statistics.median(forward for forward, _ in times),
            statistics.median(backward for _, backward in times),
            rebinder.kept_bytes,
            peak,
            compile_s,
        )

    def _pass(self, runner: LayerRunner, place: Place) -> tuple[float, float]:
        """Return seconds of one forward and one backward."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        runner.forward(place, self._hidden)
        marks[1].record()
        runner.backward(place, self._hidden, self._gradient)
        marks[2].record()
        marks[2].synchronize()
        return (
            marks[0].elapsed_time(marks[1]) / 1e3,
            marks[1].elapsed_time(marks[2]) / 1e3,
        )


def measure_levels(
    layer: ResidentLayer, boundary_bytes: int, menu: Sequence[str] = MENU
) -> tuple[tuple[SaveLevel, ...], int]:
    """Return the useful levels of a compiled layer and its largest workspace.

    A level that keeps more without being faster than a cheaper one is left out.
    """
    levels: list[SaveLevel] = []
    workspace = 0
    for name in menu:
        reading = layer.read("compile", name)
        workspace = max(workspace, reading.workspace_bytes)
        seconds = reading.forward_s + reading.backward_s
        if levels and seconds >= levels[-1].forward_s + levels[-1].backward_s:
            continue
        levels.append(
            SaveLevel(
                name=name,
                kept_bytes=boundary_bytes + reading.kept_bytes,
                forward_s=reading.forward_s,
                backward_s=reading.backward_s,
            )
        )
    return tuple(levels), workspace


def measure_compiled_layer(
    config: Any,
    index: int,
    name: str,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    menu: Sequence[str] = MENU,
) -> LayerCost:
    """Measure one layer type with its compiled body; ``shape`` is ``[rows, tokens]``.

    Raises:
        InvalidInput: If there is no GPU: a compiled body is profiled on the device.
    """
    if device.type != "cuda":
        raise InvalidInput("body", "compile", "profile it on a GPU, or use eager")
    layer = ResidentLayer(config, index, shape, device, dtype)
    boundary_bytes = shape[0] * shape[1] * config.hidden_size * dtype.itemsize
    levels, workspace = measure_levels(layer, boundary_bytes, menu)
    return LayerCost(
        layer_type=name,
        num_parameters=layer.num_parameters,
        weight_bytes=layer.num_parameters * dtype.itemsize,
        boundary_bytes=boundary_bytes,
        forward_s=levels[0].forward_s,
        backward_s=levels[0].backward_s,
        workspace_bytes=workspace,
        levels=levels,
    )
