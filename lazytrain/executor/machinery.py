"""Putting together what a step works with: rings, stores, runner, head, sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.executor.bodies import Bodies
from lazytrain.executor.boundaries import BoundaryStore
from lazytrain.executor.gradients import GradientSums
from lazytrain.executor.handles import Rebinder
from lazytrain.executor.layers import LayerRunner
from lazytrain.executor.loss import HeadLoss
from lazytrain.executor.memory import Sizes, shared_sums
from lazytrain.executor.packing import ConditionMaker
from lazytrain.executor.spill import HostHome, NvmeHome
from lazytrain.executor.step import Machinery, RotaryCache
from lazytrain.executor.streams import Streams
from lazytrain.executor.weights import WeightStreamer
from lazytrain.models.decoder import Decoder
from lazytrain.schedule.plan import Plan


@dataclass(frozen=True)
class HostBuffers:
    """Flat host buffers per part; gradients only of parts drained as a whole."""

    weights: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True)
class Choices:
    """Body, attention backend and whether released memory is poisoned."""

    body: str | None
    attention: str
    poison: bool


def make_machinery(
    plan: Plan,
    decoder: Decoder,
    sizes: Sizes,
    streams: Streams,
    host: HostBuffers,
    homes: Mapping[int, HostHome | NvmeHome],
    choices: Choices,
) -> Machinery:
    """Allocate the device buffers of a plan and wire them up."""
    weights = WeightStreamer(
        streams,
        host.weights,
        sizes.layouts,
        sizes.resident,
        slots=plan.weight_slots,
        chunk_bytes=plan.chunk_bytes,
        poison=choices.poison,
    )
    boundaries = BoundaryStore(
        plan, streams, sizes.wave, sizes.dtype, homes, poison=choices.poison
    )
    sums = GradientSums(
        streams,
        sizes.layouts,
        host.gradients,
        shared_sums(sizes, plan, tied=decoder.tied),
        slots=plan.grad_slots,
        slot_numel=sizes.slot_numel,
        dtype=sizes.dtype,
        waiting=sizes.waiting,
        poison=choices.poison,
    )
    return Machinery(
        plan,
        decoder,
        streams,
        sizes.layouts,
        weights,
        boundaries,
        _runner(plan, decoder, sizes, weights, boundaries, choices),
        _head(plan, decoder, sizes, streams.device),
        sums,
        torch.zeros((), dtype=torch.float64, device=streams.device),
        RotaryCache(decoder, streams.device, sizes.dtype),
        ConditionMaker(decoder, streams.device),
    )


def _runner(
    plan: Plan,
    decoder: Decoder,
    sizes: Sizes,
    weights: WeightStreamer,
    boundaries: BoundaryStore,
    choices: Choices,
) -> LayerRunner:
    """Return the layer runner; handles are rebound to where their owner is."""
    layers = [part for part in decoder.parts if part.kind == "layer"]
    names = {part.layer_type: list(part.tensors) for part in layers}
    layouts = {part.layer_type: sizes.layouts[part.name] for part in layers}
    kinds = {template.body for template in plan.templates}
    body = choices.body or (kinds.pop() if len(kinds) == 1 else "eager")

    def resolve(owner: str) -> Tensor:
        kind, _, index = owner.partition(".")
        if kind == "boundary":
            return boundaries.flat(int(index))
        return weights.where(owner)

    bodies = Bodies(decoder, names, body, choices.attention)
    expected = {
        (template.layer_type, template.save_level): template.kept_bytes
        for template in plan.templates
        if template.kept_bytes is not None
    }
    return LayerRunner(bodies, layouts, Rebinder(resolve), expected)


def _head(plan: Plan, decoder: Decoder, sizes: Sizes, device: torch.device) -> HeadLoss:
    """Return the head with the final norm's parameter names."""
    prefix = "model.norm."
    names = [
        name.removeprefix(prefix)
        for name in decoder.parts[-1].tensors
        if name.startswith(prefix)
    ]
    return HeadLoss(decoder, names, plan.loss_chunk_tokens, device, sizes.dtype)
