"""Device slots through which a layer-streaming rival passes its layers.

A slot is a flat weight buffer, a flat gradient buffer, and one template per layer type
whose parameters are views of both. Copies run on streams of their own; on a CPU they
are plain copies at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lazytrain.baselines.host_parts import HostPart, views_of
from lazytrain.models.decoder import Decoder


def bind(
    module: nn.Module, weights: dict[str, Tensor], grads: dict[str, Tensor]
) -> None:
    """Make a template's parameters views of given weights and gradients."""
    for name, view in weights.items():
        owner, _, leaf = name.rpartition(".")
        parameter = nn.Parameter(view)
        parameter.grad = grads[name]
        setattr(module.get_submodule(owner), leaf, parameter)


class Ticket:
    """An event where there is a GPU; nothing where copies happen at once."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._event = cuda.Event() if device.type == "cuda" else None

    def record(self, stream: Any = None) -> None:
        """Mark the point that a stream (default: the compute stream) has reached."""
        if self._event is not None:
            self._event.record(stream or torch.cuda.current_stream())

    def wait(self, stream: Any = None) -> None:
        """Make a stream (default: the compute stream) wait for the mark."""
        if self._event is not None:
            (stream or torch.cuda.current_stream()).wait_event(self._event)


@dataclass
class Slot:
    """One layer's place on the device."""

    weights: Tensor
    gradient: Tensor
    modules: dict[str, nn.Module]
    arrived: Ticket
    read: Ticket
    drained: Ticket
    layer: int = -1
    last_use: int = 0
    module: nn.Module = field(default_factory=nn.Identity)


class Ring:
    """A few slots and the copies in and out of them.

    Args:
        decoder: The model's templates.
        layers: The layers in host memory, in forward order.
        num_slots: How many layers fit on the device at once.
        device: Where the slots lie.
    """

    def __init__(
        self,
        decoder: Decoder,
        layers: list[HostPart],
        num_slots: int,
        device: torch.device,
    ) -> None:
        self._layers = layers
        self._types = decoder.layer_types
        self._device = device
        self._clock = 0
        is_cuda = device.type == "cuda"
        cuda: Any = torch.cuda
        self._up = cuda.Stream(device) if is_cuda else None
        self._down = cuda.Stream(device) if is_cuda else None
        self._slots = [self._slot(decoder) for _ in range(num_slots)]

    def _slot(self, decoder: Decoder) -> Slot:
        numel = max(layer.weights.numel() for layer in self._layers)
        dtype = self._layers[0].weights.dtype
        weights = torch.zeros(numel, dtype=dtype, device=self._device)
        gradient = torch.zeros_like(weights)
        modules = {}
        for kind in dict.fromkeys(self._types):
            shape = self._layers[self._types.index(kind)].shape
            modules[kind] = decoder.template(kind).train()
            bind(modules[kind], views_of(shape, weights), views_of(shape, gradient))
        return Slot(
            weights,
            gradient,
            modules,
            arrived=Ticket(self._device),
            read=Ticket(self._device),
            drained=Ticket(self._device),
        )

    def _on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()

    def forget(self) -> None:
        """Drop all layers: the host's weights have changed."""
        for slot in self._slots:
            slot.layer = -1

    def prefetch(self, layer: int) -> Slot:
        """Start copying a layer into the slot that was used longest ago."""
        self._clock += 1
        for slot in self._slots:
            if slot.layer == layer:
                slot.last_use = self._clock
                return slot
        slot = min(self._slots, key=lambda s: s.last_use)
        source = self._layers[layer].weights
        slot.layer, slot.last_use = layer, self._clock
        slot.module = slot.modules[self._types[layer]]
        slot.read.wait(self._up)
        with self._on(self._up), torch.no_grad():
            slot.weights[: source.numel()].copy_(source, non_blocking=True)
            slot.arrived.record(self._up)
        return slot

    def take(self, layer: int) -> Slot:
        """Return the slot that holds a layer, once compute may read it."""
        slot = self.prefetch(layer)
        slot.arrived.wait()
        return slot

    def clear_gradient(self, slot: Slot) -> None:
        """Zero a slot's gradient once its last copy down is through."""
        slot.drained.wait()
        slot.gradient.zero_()

    def drain_gradient(self, slot: Slot) -> None:
        """Copy a slot's gradient down to its layer's host buffer."""
        target = self._layers[slot.layer].gradient
        done = Ticket(self._device)
        done.record()
        done.wait(self._down)
        with self._on(self._down):
            target.copy_(slot.gradient[: target.numel()], non_blocking=True)
            slot.drained.record(self._down)
