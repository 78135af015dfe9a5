"""Running one layer forward and backward over one micro-batch.

At save level ``inputs`` a compiled layer's graph is kept from its one forward call: it
holds handles instead of tensors, and its backward recomputes inside what it needs. An
eager layer is run again with a graph from its input instead, as classical
checkpointing does. At higher levels the graph also holds what the level keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lazytrain.errors import PlanMismatch
from lazytrain.executor.bodies import Bodies
from lazytrain.executor.handles import Range, Rebinder
from lazytrain.executor.layout import Layout
from lazytrain.executor.packing import Conditions
from lazytrain.executor.precision import matmul_precision
from lazytrain.units import MIB

# Rotary tables and the like, which all graphs share.
_KEPT_SLACK_BYTES = 2 * MIB


@dataclass(frozen=True)
class KeptGraph:
    """One layer's graph over one micro-batch: its output and what it came from."""

    output: GradientEdge
    inputs: tuple[GradientEdge, ...]


@dataclass(frozen=True)
class Place:
    """Where a layer runs: which layer, which micro-batch, on which weights.

    Attributes:
        layer: Layer index.
        layer_type: Its type.
        part: Its part name, the owner of its weight handles.
        boundary: Owner name of its input.
        micro_batch: Index in the wave.
        weights: Flat buffer that holds its weights now.
        boundary_flat: Flat buffer that holds its input now.
        save_level: What its graph keeps.
    """

    layer: int
    layer_type: str
    part: str
    boundary: str
    micro_batch: int
    weights: Tensor
    boundary_flat: Tensor
    save_level: str


class LayerRunner:
    """Runs layers; keeps graphs between forward and backward.

    Args:
        bodies: The layer functions.
        layouts: Weight layout per layer type.
        rebinder: Finds owners' buffers at backward.
        expected_kept: Bytes a graph may keep per micro-batch, by layer type and save
            level, where the plan says so.
    """

    def __init__(
        self,
        bodies: Bodies,
        layouts: dict[str, Layout],
        rebinder: Rebinder,
        expected_kept: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._expected_kept = dict(expected_kept or {})
        self._bodies = bodies
        self._layouts = layouts
        self._rebinder = rebinder
        self._graphs: dict[tuple[int, int], KeptGraph] = {}
        self._leaves: dict[tuple[str, int], list[Tensor]] = {}
        self.rotary: tuple[Tensor, Tensor] | None = None
        self.conditions: Sequence[Conditions] | None = None

    @property
    def num_graphs(self) -> int:
        """Graphs held now."""
        return len(self._graphs)

    def drop_graphs(self) -> None:
        """Forget kept graphs, after a step that failed."""
        self._graphs.clear()

    def _weights(self, place: Place) -> list[Tensor]:
        """Return leaf views of a buffer, made once per layer type and buffer."""
        key = (place.layer_type, place.weights.data_ptr())
        if key not in self._leaves:
            views = self._layouts[place.layer_type].views(place.weights.detach())
            self._leaves[key] = [view.detach().requires_grad_() for view in views]
        return self._leaves[key]

    def _call(self, place: Place, hidden: Tensor, *, graph: bool) -> Tensor:
        with matmul_precision(place.layer_type, hidden):
            return self._body(place, hidden, graph=graph)

    def _body(self, place: Place, hidden: Tensor, *, graph: bool) -> Tensor:
        body = self._bodies.of(place.layer_type, place.save_level, graph=graph)
        weights = self._weights(place)
        if self.conditions is not None:
            own = self.conditions[place.micro_batch]
            mask = own.masks[place.layer_type]
            return body(hidden, own.cos, own.sin, weights, mask)
        assert self.rotary is not None
        return body(hidden, *self.rotary, weights, None)

    def replay(self, place: Place, hidden: Tensor) -> Tensor:
        """Run a layer forward without a graph; ``[b, T, H]`` in and out."""
        with torch.no_grad():
            return self._call(place, hidden, graph=False)

    def forward(self, place: Place, hidden: Tensor) -> Tensor:
        """Run a layer forward, keeping its graph if its save level says so."""
        if not self._bodies.keeps_graph(place.save_level):
            return self.replay(place, hidden)
        return self.forward_with_graph(place, hidden)

    def forward_with_graph(self, place: Place, hidden: Tensor) -> Tensor:
        """Run a layer forward and keep its graph whatever the level."""
        leaf = hidden.detach().requires_grad_()
        weights = self._weights(place)
        hooks = self._rebinder.hooks(
            Range.of(place.part, place.weights),
            Range.of(place.boundary, place.boundary_flat),
        )
        with torch.enable_grad(), hooks:
            output = self._call(place, leaf, graph=True)
        self._check_kept(place)
        self._graphs[place.layer, place.micro_batch] = KeptGraph(
            get_gradient_edge(output),
            tuple(get_gradient_edge(tensor) for tensor in (leaf, *weights)),
        )
        return output.detach()

    def _check_kept(self, place: Place) -> None:
        """Refuse a body that keeps more than its save level was planned with.

        Raises:
            PlanMismatch: Naming layer type, level and both sizes; checked once each.
        """
        key = (place.layer_type, place.save_level)
        expected = self._expected_kept.pop(key, None)
        kept = self._rebinder.kept_bytes
        if expected is not None and kept > expected * 1.02 + _KEPT_SLACK_BYTES:
            raise PlanMismatch(
                f"a {place.layer_type} layer at level {place.save_level} keeps "
                f"{kept:,} bytes per micro-batch, the plan counts on {expected:,}: "
                "profile the layers again"
            )

    def backward(
        self, place: Place, hidden: Tensor, grad_output: Tensor
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the gradients of a layer's input and of its weights.

        Args:
            place: Where the layer runs now.
            hidden: Its input, ``[b, T, H]``; read only if it is run again.
            grad_output: Gradient of its output, ``[b, T, H]``.
        """
        kept = self._graphs.pop((place.layer, place.micro_batch), None)
        if kept is None:
            kept_output, inputs = self._run_again(place, hidden)
        else:
            kept_output, inputs = kept.output, list(kept.inputs)
        with matmul_precision(place.layer_type, grad_output):
            grads = torch.autograd.grad(
                [kept_output],  # type: ignore[arg-type] # tensors and edges may mix
                inputs,  # type: ignore[arg-type]
                [grad_output],
                allow_unused=True,
            )
        assert grads[0] is not None, f"layer {place.layer} ignores its input"
        return grads[0], grads[1:]

    def _run_again(
        self, place: Place, hidden: Tensor
    ) -> tuple[Tensor | GradientEdge, list[Tensor | GradientEdge]]:
        leaf = hidden.detach().requires_grad_()
        with torch.enable_grad():
            output = self._call(place, leaf, graph=True)
        return output, [leaf, *self._weights(place)]
