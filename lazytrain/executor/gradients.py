"""Gradients: summed over micro-batches, measured, rounded and sent down.

A layer's gradients are summed in fp32 (one buffer serves all layers when a layer sees
all its micro-batches at once), rounded into a slot, squared there - so the norm is that
of the very bytes the update reads - and copied to the host in one piece.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.executor.layout import Layout
from lazytrain.executor.streams import Streams, Ticket

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """What of a part goes through one slot.

    Attributes:
        start: First element in the part's flat buffer.
        end: End of it.
        tensors: Where each tensor lies inside the slot; gaps belong to none.
        number: Index of the first tensor's square-sum.
    """

    start: int
    end: int
    tensors: tuple[slice, ...]
    number: int


class GradientSums:
    """Sums on the device and the way down.

    Args:
        streams: Streams of the device.
        layouts: Layout per part, in forward order.
        host: Flat host gradient buffer per part that is sent down at once.
        shared: Parts whose sums may share one buffer, because each is drained before
            the next one begins; the rest have a buffer of their own.
        slots: Number of download slots.
        slot_numel: Elements of one download slot.
        dtype: Dtype of gradients once rounded.
        waiting: Parts whose rounded gradient stays on the device until its update.
        poison: Fill shared sums with NaN after each drain (tests).
    """

    def __init__(
        self,
        streams: Streams,
        layouts: Mapping[str, Layout],
        host: Mapping[str, Tensor],
        shared: Sequence[frozenset[str]],
        *,
        slots: int,
        slot_numel: int,
        dtype: torch.dtype,
        waiting: frozenset[str] = frozenset(),
        poison: bool = False,
    ) -> None:
        self._streams = streams
        self._layouts = layouts
        self._host = host
        self._poison = poison
        self._unused: set[str] = set()
        device = streams.device
        self._sums: dict[str, Tensor] = {}
        own = [{name} for name in layouts if not any(name in s for s in shared)]
        for names in [*shared, *own]:
            numel = max(layouts[name].numel for name in names)
            buffer = torch.zeros(numel, dtype=torch.float32, device=device)
            self._sums |= dict.fromkeys(names, buffer)
        self._slots = [
            torch.zeros(slot_numel, dtype=dtype, device=device) for _ in range(slots)
        ]
        # A gradient is read by its own update before the next step's forward may upload
        # the new weights, so the next backward never overwrites one that is unread.
        self.waiting = {
            name: torch.zeros(layouts[name].numel, dtype=dtype, device=device)
            for name in layouts
            if name in waiting
        }
        self._sent: list[Ticket | None] = [None] * slots
        self._next = 0
        self._pieces = self._cut(slot_numel)
        count = sum(len(p.tensors) for cut in self._pieces.values() for p in cut)
        self.squares = torch.zeros(count, dtype=torch.float32, device=device)

    @property
    def device_bytes(self) -> int:
        """Bytes of sums, slots and gradients that wait."""
        held = [*self._sums.values(), *self._slots, *self.waiting.values()]
        buffers = {b.data_ptr(): b for b in held}
        return sum(b.numel() * b.element_size() for b in buffers.values())

    def _cut(self, slot_numel: int) -> dict[str, list[Piece]]:
        """Cut every part into pieces of a slot; one square-sum per tensor and piece."""
        cut: dict[str, list[Piece]] = {}
        number = 0
        for name, layout in self._layouts.items():
            cut[name] = []
            for start in range(0, layout.numel, slot_numel):
                end = min(start + slot_numel, layout.numel)
                tensors = tuple(
                    slice(max(f.offset, start) - start, min(f.end, end) - start)
                    for f in layout.fields
                    if f.offset < end and f.end > start
                )
                cut[name].append(Piece(start, end, tensors, number))
                number += len(tensors)
        return cut

    def sums(self, part: str) -> list[Tensor]:
        """Return the fp32 sum of each tensor of a part, shaped like the tensor."""
        return self._layouts[part].views(self._sums[part])

    def zero(self, part: str) -> None:
        """Clear a part's sums, for parts that are added to piecewise."""
        self._sums[part].zero_()

    def add(self, part: str, grads: Sequence[Tensor | None], *, first: bool) -> None:
        """Add one micro-batch's gradients; the first one overwrites.

        A parameter that got no gradient counts as zero and is named once in the log.
        """
        for field, total, grad in zip(
            self._layouts[part].fields, self.sums(part), grads, strict=True
        ):
            if grad is None:
                self._note_unused(f"{part}.{field.name}")
                if first:
                    total.zero_()
            elif first:
                total.copy_(grad)
            else:
                total.add_(grad)

    def _note_unused(self, name: str) -> None:
        if name not in self._unused:
            self._unused.add(name)
            log.warning("no gradient reaches %s: it counts as zero", name)

    def drain(self, part: str, name: str) -> Ticket:
        """Round, square and send a part's gradient; the ticket is its arrival.

        A gradient that waits is not sent; the ticket then is its being ready.
        """
        total = self._sums[part]
        waits = part in self.waiting
        for piece in self._pieces[part]:
            if waits:
                rounded = self.waiting[part][piece.start : piece.end]
                self._round(total, rounded, piece)
            else:
                self._send(total, self._host[part], piece)
        if self._poison and self._is_shared(part):
            total.fill_(torch.nan)
        ticket = self._streams.ticket(f"{name} gradient {part}")
        ticket.record(self._streams.compute if waits else self._streams.d2h)
        return ticket

    def _is_shared(self, part: str) -> bool:
        return sum(s is self._sums[part] for s in self._sums.values()) > 1

    def _send(self, total: Tensor, host: Tensor, piece: Piece) -> None:
        """Send one slot's worth of a sum down."""
        number = self._next
        self._next = (number + 1) % len(self._slots)
        before = self._sent[number]
        if before is not None:
            before.wait_on(self._streams.compute)
        slot = self._slots[number][: piece.end - piece.start]
        self._round(total, slot, piece)
        ready = self._streams.ticket("gradient ready")
        ready.record(self._streams.compute)
        ready.wait_on(self._streams.d2h)
        target = host[piece.start : piece.end]
        self._streams.copy(target, slot, self._streams.d2h, "gradient")
        sent = self._streams.ticket("gradient sent")
        sent.record(self._streams.d2h)
        self._sent[number] = sent

    def _round(self, total: Tensor, rounded: Tensor, piece: Piece) -> None:
        """Round one piece of a sum, and square what the update will read."""
        rounded.copy_(total[piece.start : piece.end])
        views = [rounded[tensor] for tensor in piece.tensors]
        if views:
            norms = torch.stack(torch._foreach_norm(views, 2, dtype=torch.float32))
            where = slice(piece.number, piece.number + len(views))
            self.squares[where] = norms.square()
