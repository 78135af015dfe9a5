"""Optimizer state on a tier, streamed in and out around the updates.

For hosts too small for the state (ZeRO-Infinity does the same): while one unit of it is
updated, the next ones are read and the last ones are written. Units come round in the
same order step after step, so the read-ahead goes on from the last unit of a step to
the first of the next one, which is then there before its update begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.tiers.extents import round_up
from lazytrain.tiers.slots import Slot, SlotRing, aligned_bytes
from lazytrain.tiers.tier import Ticket, Tier

READ_AHEAD = 2


@dataclass(frozen=True)
class _Place:
    """Where one tensor of a unit lies in a staging page."""

    offset: int
    num_bytes: int
    dtype: torch.dtype
    shape: torch.Size

    def view(self, page: Tensor) -> Tensor:
        """Return the tensor as a view of a page."""
        flat = page[self.offset : self.offset + self.num_bytes]
        return flat.view(self.dtype).view(self.shape)


Layout = dict[str, _Place]


@dataclass(frozen=True)
class _Reading:
    """A unit on its way into a slot."""

    unit: str
    slot: Slot
    tickets: tuple[Ticket, ...]


def _lay_out(tensors: Mapping[str, Tensor]) -> Layout:
    """Return where each tensor goes; each starts on a block, as O_DIRECT wants it."""
    layout: Layout = {}
    cursor = 0
    for name, tensor in tensors.items():
        layout[name] = _Place(cursor, tensor.nbytes, tensor.dtype, tensor.shape)
        cursor += round_up(tensor.nbytes)
    return layout


def _size_of(layout: Layout) -> int:
    """Return the bytes of a page, or of a unit on the tier."""
    return sum(round_up(place.num_bytes) for place in layout.values())


class StateStream:
    """Named tensors of many units on one tier; one thread at a time uses it.

    A unit is read only behind the last write of the same unit, and a staging page is
    used again only when its writes have ended: the tier and the ring see to that.

    Args:
        tier: Where they live; this stream's keys start with ``optimizer.``.
        num_slots: Pages in host memory: 4 let one unit be updated, two be read, and
            writes run on.
        poison: Fill a page with NaN before it is used again (tests).
    """

    def __init__(
        self, tier: Tier, *, num_slots: int = READ_AHEAD + 2, poison: bool = False
    ) -> None:
        if num_slots < 2:
            raise InvalidInput("num_slots", num_slots, "use 2 or more")
        self._tier = tier
        self._num_slots = num_slots
        self._poison = poison
        self._layouts: dict[str, Layout] = {}
        self._order: list[str] = []
        self._written: set[str] = set()
        self._ring: SlotRing | None = None
        self._ahead: deque[_Reading] = deque()
        self._coming = 0

    @property
    def host_bytes(self) -> int:
        """Host memory of the staging pages."""
        return self._num_slots * self._page_bytes

    @property
    def tier_bytes(self) -> int:
        """Bytes that all units take on the tier, in whole blocks."""
        return sum(_size_of(layout) for layout in self._layouts.values())

    @property
    def _page_bytes(self) -> int:
        return max((_size_of(layout) for layout in self._layouts.values()), default=0)

    def declare(self, unit: str, tensors: Mapping[str, Tensor]) -> None:
        """Add a unit behind all others; its state is zero until it is first used.

        Args:
            unit: Name of the unit, part of its keys on the tier.
            tensors: Dtypes and shapes by name; the values are not read.

        Raises:
            InvalidInput: If the name is taken, or units are in use already.
        """
        if unit in self._layouts or self._ring is not None:
            raise InvalidInput("unit", unit, "declare each unit once, before any use")
        self._layouts[unit] = _lay_out(tensors)
        self._order.append(unit)

    def store(self, unit: str, name: str, tensor: Tensor) -> None:
        """Replace one tensor of a unit; blocks until it is written.

        Raises:
            StorageFault: If it could not be written.
            TierFull: If the tier has no room for it.
        """
        self.settle()
        place = self._place(unit, name)
        page = aligned_bytes(place.num_bytes)
        page.view(place.dtype).view(place.shape).copy_(tensor)
        if place.num_bytes:
            self._tier.put(_key(unit, name), page).wait()
            self._written.add(_key(unit, name))

    def load(self, unit: str, name: str) -> Tensor:
        """Return a copy of one tensor of a unit, for a checkpoint.

        Raises:
            StorageFault: If it came back different, or was never written whole.
        """
        place = self._place(unit, name)
        page = aligned_bytes(place.num_bytes)
        if _key(unit, name) in self._written:
            self._tier.fetch(_key(unit, name), page).wait()
        return page.view(place.dtype).view(place.shape)

    @contextmanager
    def using(self, unit: str) -> Iterator[dict[str, Tensor]]:
        """Lend a unit's tensors, to be updated in place; then write them behind.

        If the body raises, the tier keeps the unit's old state.

        Raises:
            StorageFault: If the unit came back different, or an earlier one could not
                be written.
        """
        reading = self._arrived(unit)
        layout = self._layouts[unit]
        writes: list[Ticket] = []
        try:
            yield {n: place.view(reading.slot.buffer) for n, place in layout.items()}
            for name, place in layout.items():
                if place.num_bytes:
                    flat = reading.slot.buffer[place.offset :][: place.num_bytes]
                    writes.append(self._tier.put(_key(unit, name), flat))
                    self._written.add(_key(unit, name))
        finally:
            self._pages().give_back(reading.slot, *writes)
        self.read_ahead()

    def read_ahead(self) -> None:
        """Start reading the units that come next, as far as pages are free.

        Raises:
            StorageFault: If an earlier unit could not be written.
        """
        # One unit less than there are: the one in use must be written first.
        most = min(READ_AHEAD, len(self._order) - 1)
        while len(self._ahead) < most:
            slot = self._pages().take_if_quiet()
            if slot is None:
                return
            self._start(self._order[self._coming], slot)

    def settle(self) -> None:
        """Wait until nothing is read or written; what was read ahead is forgotten.

        Raises:
            StorageFault: If a unit could not be read or written.
        """
        while self._ahead:
            reading = self._ahead.popleft()
            self._pages().give_back(reading.slot, *reading.tickets)
        slots: list[Slot] = []
        try:
            while self._ring is not None and len(slots) < self._num_slots:
                slots.append(self._ring.take())
        finally:
            for slot in slots:
                self._pages().give_back(slot)

    def _arrived(self, unit: str) -> _Reading:
        """Return a unit that has been read, and read on behind it."""
        if unit not in self._layouts:
            raise InvalidInput("unit", unit, "declare it before")
        if self._ahead and self._ahead[0].unit != unit:
            self.settle()
        if not self._ahead:
            self._start(unit, self._pages().take())
        reading = self._ahead.popleft()
        try:
            for ticket in reading.tickets:
                ticket.wait()
            self.read_ahead()
        except BaseException:
            self._pages().give_back(reading.slot, *reading.tickets)
            raise
        return reading

    def _start(self, unit: str, slot: Slot) -> None:
        """Start reading a unit into a free page."""
        tickets = []
        for name, place in self._layouts[unit].items():
            flat = slot.buffer[place.offset :][: place.num_bytes]
            if _key(unit, name) in self._written:
                tickets.append(self._tier.fetch(_key(unit, name), flat))
            else:
                flat.zero_()
        self._ahead.append(_Reading(unit, slot, tuple(tickets)))
        self._coming = (self._order.index(unit) + 1) % len(self._order)

    def _pages(self) -> SlotRing:
        """Return the ring of staging pages, made at its first use."""
        if self._ring is None:
            self._ring = SlotRing(
                self._num_slots, self._page_bytes, poison=self._poison
            )
        return self._ring

    def _place(self, unit: str, name: str) -> _Place:
        """Return where a declared tensor lies."""
        if name not in self._layouts.get(unit, {}):
            raise InvalidInput("tensor", f"{unit}.{name}", "declare it before")
        return self._layouts[unit][name]


def _key(unit: str, name: str) -> str:
    """Return a tensor's key on the tier."""
    return f"optimizer.{unit}.{name}"
