"""Clip and step of a layer-streaming rival, over parts in host memory.

``PlainStep`` is the system's own: torch's clipping, then CPUAdam. ``HybridStep`` puts
the Hybrid 8-bit operator in its place (paper, Section 3.5) and changes nothing else:
the master stays the bf16 weight, and nothing overlaps the next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lazytrain.baselines.cpu_adam import host_optimizer
from lazytrain.baselines.host_parts import HostPart, offsets_of
from lazytrain.config import OptimizerSettings
from lazytrain.executor.optimizer import format_name
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.clip import clip_factor, square_sums
from lazytrain.optim.partition import eight_bit_slices
from lazytrain.optim.state import TensorSlice


class PlainStep:
    """``clip_grad_norm_`` over all gradients, then one optimizer over all masters."""

    def __init__(
        self,
        parts: Sequence[HostPart],
        settings: OptimizerSettings,
        use_deepspeed: bool,
    ) -> None:
        self._max_norm = settings.max_grad_norm
        self._parameters = [p for part in parts for p in part.parameters.values()]
        self._adam = host_optimizer(self._parameters, settings, use_deepspeed)
        self.kernel = self._adam.kernel
        self.state_format = self._adam.state_format

    def clip(self) -> float:
        """Scale the gradients in place; return their norm before."""
        norm: torch.Tensor = torch.nn.utils.clip_grad_norm_(
            self._parameters, self._max_norm
        )
        return norm.item()

    def step(self, learning_rate: float) -> None:
        """Step every master."""
        self._adam.step(learning_rate)


class HybridStep:
    """Fast clipping and AdamW with 8-bit state for a share of the parameters."""

    def __init__(self, parts: Sequence[HostPart], settings: OptimizerSettings) -> None:
        self._parts = parts
        self._settings = settings.model_copy(
            update={"type": "hybrid_adamw_8bit", "master": "bf16"}
        )
        self._adamw = HostAdamW(self._settings, parts[0].master.dtype)
        self.kernel = self._adamw.kernel
        fraction = settings.eight_bit_fraction
        self.state_format = format_name(fraction)
        self._slices = {part.shape.name: self._slices_of(part) for part in parts}
        chosen = eight_bit_slices(self._slices, fraction)
        self._states = {
            part.shape.name: self._adamw.new_state(
                part.master, self._slices[part.shape.name], chosen[part.shape.name]
            )
            for part in parts
        }
        self._count = 0
        self._factor = 1.0

    def _slices_of(self, part: HostPart) -> list[TensorSlice]:
        offsets, _ = offsets_of(part.shape)
        decay = self._settings.weight_decay
        return [
            TensorSlice(name, offsets[name], torch.Size(shape).numel(), decay)
            for name, shape in part.shape.tensors.items()
        ]

    def clip(self) -> float:
        """Read each gradient once; return the norm. The factor goes into the step."""
        sums: list[float] = []
        for part in self._parts:
            slices = self._slices[part.shape.name]
            threads = self._settings.threads
            sums += square_sums(part.gradient, slices, threads).tolist()
        result = clip_factor(sums, self._settings.max_grad_norm)
        self._factor = result.factor
        return result.norm

    def step(self, learning_rate: float) -> None:
        """Step every part."""
        self._count += 1
        for part in self._parts:
            self._adamw.update(
                self._states[part.shape.name],
                part.gradient,
                step=self._count,
                learning_rate=learning_rate,
                scale=self._factor,
            )
