"""Optimizer state on a tier, streamed in and out around the updates.

For hosts too small for the state (ZeRO-Infinity does the same): while one part updates,
the next part's state is read and the last one's is written. A part's tensors lie in one
flat page, so each way is one transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.tiers.slots import Slot, SlotRing, aligned_bytes
from lazytrain.tiers.tier import Ticket, Tier

_TENSOR_ALIGN_BYTES = 256


@dataclass(frozen=True)
class _Place:
    """Where one tensor of a part lies in its page."""

    offset: int
    num_bytes: int
    dtype: torch.dtype
    shape: torch.Size


Layout = dict[str, _Place]


def _lay_out(tensors: Mapping[str, Tensor]) -> tuple[Layout, int]:
    """Return where each tensor goes, and the page's size in bytes."""
    layout: Layout = {}
    cursor = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        layout[name] = _Place(cursor, size, tensor.dtype, tensor.shape)
        cursor += -(-size // _TENSOR_ALIGN_BYTES) * _TENSOR_ALIGN_BYTES
    return layout, cursor


def _views(layout: Layout, page: Tensor) -> dict[str, Tensor]:
    """Return a part's tensors as views of a page."""
    return {
        name: page[place.offset : place.offset + place.num_bytes]
        .view(place.dtype)
        .view(place.shape)
        for name, place in layout.items()
    }


class StateStream:
    """Named tensors of many parts on one tier.

    Args:
        tier: Where they live; this stream's keys start with ``optimizer.``.
        num_slots: Pages in host memory: 3 lets reading, updating and writing overlap.
    """

    def __init__(self, tier: Tier, *, num_slots: int = 3) -> None:
        if num_slots < 2:
            raise InvalidInput("num_slots", num_slots, "use 2 or more")
        self._tier = tier
        self._num_slots = num_slots
        self._layouts: dict[str, Layout] = {}
        self._sizes: dict[str, int] = {}
        self._ring: SlotRing | None = None

    @property
    def host_bytes(self) -> int:
        """Host memory of the staging pages, 0 before the first walk."""
        return self._ring.host_bytes if self._ring is not None else 0

    @property
    def tier_bytes(self) -> int:
        """Bytes of state kept on the tier."""
        return sum(self._sizes.values())

    def store(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a part's first state, and remember its layout; blocks until written.

        Raises:
            StorageFault: If it could not be written.
            TierFull: If the tier has no room for it.
        """
        layout, size = _lay_out(tensors)
        page = aligned_bytes(size)
        for name, view in _views(layout, page).items():
            view.copy_(tensors[name])
        self._tier.put(self._key(part), page).wait()
        self._layouts[part], self._sizes[part] = layout, size
        if self._ring is not None and size > self._ring.slot_bytes:
            self._ring = None  # made anew, larger, by the next walk

    def load(self, part: str) -> dict[str, Tensor]:
        """Return a copy of a part's state, for a checkpoint.

        Raises:
            StorageFault: If it came back different.
        """
        page = aligned_bytes(self._size_of(part))
        self._tier.fetch(self._key(part), page).wait()
        return _views(self._layouts[part], page)

    def walk(self, order: Sequence[str]) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield each part with its state, to be updated in place.

        The tensors are valid until the next part is asked for; then they are on their
        way back. A part whose update raised keeps its old state on the tier. All writes
        have ended when the walk has.

        Raises:
            StorageFault: If a part came back different or could not be written.
        """
        ring = self._ring_for(order)
        ahead: deque[tuple[Slot, Ticket]] = deque()
        writes: list[Ticket] = []
        try:
            for index, part in enumerate(order):
                # One part ahead; the ring makes its read wait for an older write.
                for later in order[index + len(ahead) : index + 2]:
                    ahead.append(self._read(ring, later))
                slot, read = ahead[0]
                read.wait()
                page = slot.buffer[: self._sizes[part]]
                yield part, _views(self._layouts[part], page)
                writes.append(self._tier.put(self._key(part), page))
                ahead.popleft()
                ring.give_back(slot, writes[-1])
        finally:
            for slot, read in ahead:
                ring.give_back(slot, read)
        for write in writes:
            write.wait()

    def _read(self, ring: SlotRing, part: str) -> tuple[Slot, Ticket]:
        """Start reading a part into a free slot."""
        slot = ring.take()
        page = slot.buffer[: self._sizes[part]]
        return slot, self._tier.fetch(self._key(part), page)

    def _ring_for(self, order: Sequence[str]) -> SlotRing:
        """Return the ring, large enough for every part of a walk."""
        for part in order:
            self._size_of(part)
            if order.count(part) > 1:
                raise InvalidInput("order", part, "name each part once per walk")
        if self._ring is None:
            largest = max(self._sizes.values(), default=0)
            self._ring = SlotRing(self._num_slots, largest)
        return self._ring

    def _size_of(self, part: str) -> int:
        """Return a part's page size."""
        if part not in self._sizes:
            raise InvalidInput("part", part, "store its first state before")
        return self._sizes[part]

    @staticmethod
    def _key(part: str) -> str:
        """Return a part's key on the tier."""
        return f"optimizer.{part}"
