"""MegaTrain's step: a checkpoint every K layers, kept on the device (paper, Section 2).

Written from the system's description, its faults included, because the comparison is
with the step as users run it. Every block is recomputed without a graph, its last layer
too, and then run once more with one: five forwards in all. The chunked loss keeps every
logit until one backward. Clipping, Adam and the copy of the weights follow one after
another. ``single_recompute`` removes the redundant pass and nothing else, so that a
planner is not credited with a bug fix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lazytrain.baselines.finished import FinishedStep, Stopwatch
from lazytrain.baselines.host_parts import host_part
from lazytrain.baselines.host_step import HybridStep, PlainStep
from lazytrain.baselines.outer import OuterParts
from lazytrain.baselines.slots import Ring, Slot
from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.errors import PlanMismatch
from lazytrain.executor.protocol import Peaks, StepResult
from lazytrain.models.decoder import Decoder
from lazytrain.profile.memory import gpu_peak_bytes, host_peak_bytes
from lazytrain.profile.setup import EngineSetup
from lazytrain.schedule.plan import Home


@dataclass(frozen=True)
class MegaTrainOptions:
    """K, what differs from the system as it is, and how much is done at once.

    ``checkpoints`` are kept boundaries in the place of every K-th, from 0 on; a
    block's last layer, whose output nobody reads, is then not replayed.
    ``hybrid_state`` puts the Hybrid 8-bit operator in the place of clip and CPUAdam.
    ``block_tokens`` bounds the tokens whose graph over a whole block is alive at once;
    it matters to ``single_recompute`` alone.
    """

    interval: int = 4
    single_recompute: bool = False
    checkpoints: tuple[int, ...] | None = None
    hybrid_state: bool = False
    loss_chunk_tokens: int = 4096
    block_tokens: int = 16384


class MegaTrainEngine:
    """The baseline as an engine of the training loop."""

    def __init__(
        self,
        model_config: Any,
        settings: OptimizerSettings,
        *,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        options: MegaTrainOptions | None = None,
        state_dict: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._options = options or MegaTrainOptions()
        self._device = device
        self._dtype = dtype
        self._decoder = Decoder(model_config)
        self.num_parameters = self._decoder.num_parameters
        self._parts = [
            host_part(self._decoder, shape, seed, dtype, device, state_dict)
            for shape in self._decoder.parts
        ]
        num_slots = self._options.interval if self._options.single_recompute else 2
        self._ring = Ring(self._decoder, self._parts[1:-1], num_slots, device)
        self._outer = OuterParts(self._decoder, self._parts[0], self._parts[-1], device)
        self._update: HybridStep | PlainStep
        if self._options.hybrid_state:
            self._update = HybridStep(self._parts, settings)
        else:
            self._update = PlainStep(self._parts, settings, device.type == "cuda")
        self.master = "fp32" if dtype == torch.float32 else "bf16"
        self.optimizer_state = self._update.state_format
        self.kernel = self._update.kernel
        self._rotary: dict[int, tuple[Tensor, Tensor]] = {}

    def train_step(self, batch: Batch, learning_rate: float) -> FinishedStep:
        """Run one whole step; nothing of it overlaps the next."""
        watch = Stopwatch()
        if batch.num_supervised == 0:
            return FinishedStep(StepResult(0.0, None, skipped=True))
        loss = self._forward_backward(batch)
        self._synchronize()
        watch.lap("forward_backward")
        norm = self._update.clip()
        watch.lap("clip")
        if not (math.isfinite(norm) and math.isfinite(loss.item())):
            step = StepResult(loss.item(), None, True, watch.laps)
            return FinishedStep(step)
        self._update.step(learning_rate)
        watch.lap("optimizer")
        for part in self._parts:
            part.publish()
        self._ring.forget()
        watch.lap("copy_weights")
        return FinishedStep(StepResult(loss.item(), norm, False, watch.laps))

    def _forward_backward(self, batch: Batch) -> Tensor:
        """Leave the mean loss's gradients in the host buffers; return the loss."""
        self._outer.upload()
        ids = batch.input_ids.to(self._device)
        checkpoints, hidden = self._forward(self._outer.embed(ids))
        loss, gradient = self._outer.loss(
            hidden, batch, self._options.loss_chunk_tokens
        )
        del hidden
        ends = [*sorted(checkpoints)[1:], self._decoder.num_layers]
        for start, end in reversed(list(zip(sorted(checkpoints), ends, strict=True))):
            boundary = checkpoints.pop(start)
            if self._options.single_recompute:
                gradient = self._fused_block(start, end, boundary, gradient)
            else:
                gradient = self._replayed_block(start, end, boundary, gradient)
        self._outer.embedding_backward(ids, gradient)
        self._outer.download()
        return loss

    def _kept(self) -> frozenset[int]:
        """Return the boundaries that are kept: every K-th, or those of the plan."""
        layers, options = range(self._decoder.num_layers), self._options
        if options.checkpoints is not None:
            return frozenset(options.checkpoints) & frozenset(layers)
        return frozenset(layers[:: options.interval])

    @torch.no_grad()
    def _forward(self, hidden: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        """Run all layers; return the boundaries that are kept, and the last."""
        checkpoints, kept = {}, self._kept()
        for layer in range(self._decoder.num_layers):
            if layer in kept:
                checkpoints[layer] = hidden
            slot = self._take(layer, layer + 1)
            hidden = self._run(slot, hidden)
        return checkpoints, hidden

    def _replayed_block(
        self, start: int, end: int, hidden: Tensor, gradient: Tensor
    ) -> Tensor:
        """Recompute layers start..end-1 without graphs, then each with its graph."""
        inputs = []
        is_planned = self._options.checkpoints is not None
        with torch.no_grad():
            for layer in range(start, end):
                inputs.append(hidden)
                if is_planned and layer == end - 1:
                    break
                hidden = self._run(self._take(layer, layer + 1), hidden)
        del hidden
        for layer in reversed(range(start, end)):
            slot = self._take(layer, layer - 1)
            self._ring.clear_gradient(slot)
            entry = inputs.pop().detach().requires_grad_()
            torch.autograd.backward(self._run(slot, entry), gradient)
            slot.read.record()
            self._ring.drain_gradient(slot)
            gradient = _gradient_of(entry)
        return gradient

    def _fused_block(
        self, start: int, end: int, hidden: Tensor, gradient: Tensor
    ) -> Tensor:
        """Run a block once with its graph, a few sequences at a time."""
        slots = [self._ring.take(layer) for layer in range(start, end)]
        for slot in slots:
            self._ring.clear_gradient(slot)
        rows = max(1, self._options.block_tokens // hidden.shape[1])
        entries = []
        for piece, flow in zip(
            torch.split(hidden, rows), torch.split(gradient, rows), strict=True
        ):
            entry = piece.detach().requires_grad_()
            output = entry
            for slot in slots:
                output = self._run(slot, output)
            torch.autograd.backward(output, flow)
            entries.append(_gradient_of(entry))
        for slot in slots:
            slot.read.record()
            self._ring.drain_gradient(slot)
        return torch.cat(entries)

    def _take(self, layer: int, following: int) -> Slot:
        """Return a layer's slot, with the next one's copy under way."""
        slot = self._ring.take(layer)
        if 0 <= following < self._decoder.num_layers:
            self._ring.prefetch(following)
        return slot

    def _run(self, slot: Slot, hidden: Tensor) -> Tensor:
        """Run one layer; padding on the right needs no mask under causal attention."""
        length = hidden.shape[1]
        if length not in self._rotary:
            self._rotary[length] = self._decoder.rotary(
                length, self._device, self._dtype
            )
        positions = torch.arange(length, device=self._device)[None]
        output = slot.module(
            hidden,
            position_embeddings=self._rotary[length],
            position_ids=positions,
            attention_mask=None,
        )
        slot.read.record()
        states: Tensor = output[0] if isinstance(output, tuple) else output
        return states

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @torch.no_grad()
    def evaluate_loss(self, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of supervised tokens."""
        self._outer.upload()
        hidden = self._outer.embed(batch.input_ids.to(self._device))
        for layer in range(self._decoder.num_layers):
            hidden = self._run(self._take(layer, layer + 1), hidden)
        total = self._outer.summed_loss(hidden, batch, self._options.loss_chunk_tokens)
        return total.item(), batch.num_supervised

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the masters by their Hugging Face names."""
        for part in self._parts:
            for name, parameter in part.parameters.items():
                yield part.shape.prefix + name, parameter.detach()

    def named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the last step's gradients, clipped, by Hugging Face name."""
        for part in self._parts:
            for name, parameter in part.parameters.items():
                if parameter.grad is not None:
                    yield part.shape.prefix + name, parameter.grad

    def drain(self) -> None:
        """Wait for the device; updates are never behind."""
        self._synchronize()

    def peaks(self) -> Peaks:
        """Return peak memory."""
        return Peaks(gpu_peak_bytes(), host_peak_bytes())

    def close(self) -> None:
        """Unlock the host buffers."""
        self._synchronize()
        for part in self._parts:
            part.release(self._device)


def _gradient_of(entry: Tensor) -> Tensor:
    """Return the gradient that a backward left in a leaf."""
    if entry.grad is None:
        raise RuntimeError("a layer's output does not depend on its input")
    return entry.grad


def host_bytes_per_parameter(dtype: torch.dtype) -> int:
    """Return master, pinned copy, gradient and two fp32 moments, in bytes."""
    return 3 * dtype.itemsize + 8


def build(setup: EngineSetup) -> MegaTrainEngine:
    """Build the row ``megatrain``."""
    return _build(setup)


def build_single(setup: EngineSetup) -> MegaTrainEngine:
    """Build ``megatrain-single-recompute``: the same without the redundant pass."""
    return _build(setup, single_recompute=True)


def build_hybrid(setup: EngineSetup) -> MegaTrainEngine:
    """Build ``megatrain-hybrid8bit``: the same with the Hybrid 8-bit operator."""
    return _build(setup, hybrid_state=True)


def build_planned(setup: EngineSetup) -> MegaTrainEngine:
    """Build ``megatrain-milp``: the same on the plan's checkpoints.

    Raises:
        PlanMismatch: If there is no plan, or one that keeps a boundary outside HBM.
    """
    if setup.plan is None:
        raise PlanMismatch("megatrain-milp runs a plan: give --plan")
    homes = setup.plan.homes
    others = set(homes) - {Home.GPU, Home.RECOMPUTE}
    if others or homes[0] != Home.GPU:
        raise PlanMismatch(
            "MegaTrain's step keeps checkpoints in HBM alone, boundary 0 among them; "
            f"this plan has {', '.join(homes)}"
        )
    kept = tuple(i for i, home in enumerate(homes) if home == Home.GPU)
    return _build(setup, checkpoints=kept)


def _build(setup: EngineSetup, **changes: Any) -> MegaTrainEngine:
    return MegaTrainEngine(
        setup.model_config,
        setup.optimizer,
        dtype=setup.dtype,
        device=setup.device,
        seed=setup.seed,
        options=MegaTrainOptions(
            **changes,
            loss_chunk_tokens=setup.executor.loss_chunk_tokens,
            block_tokens=setup.executor.micro_batch_tokens,
        ),
        state_dict=setup.state_dict,
    )
