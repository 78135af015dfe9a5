"""Which bytes of the tier's file belong to whom: a best-fit list of free extents.

A freed extent remembers the transfers that still touch it, and hands them to its next
owner, who must let them end first. So space returns at once and is never reused early.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

ALIGN_BYTES = 4096  # O_DIRECT's alignment on every common disk and page size


def round_up(num_bytes: int) -> int:
    """Return a size rounded up to whole aligned blocks."""
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


@dataclass
class Extent:
    """A piece of the file: ``[offset, offset + size_bytes)`` and who still uses it."""

    offset: int
    size_bytes: int
    busy: list[Future[None]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """First byte behind the extent."""
        return self.offset + self.size_bytes


class Extents:
    """Free space of a file of fixed size. Not thread-safe: the tier holds its lock."""

    def __init__(self, capacity_bytes: int) -> None:
        self._free = [Extent(0, capacity_bytes)]
        self.free_bytes = capacity_bytes

    def largest_bytes(self) -> int:
        """Return the size of the largest free extent."""
        return max((extent.size_bytes for extent in self._free), default=0)

    def take(self, num_bytes: int) -> Extent | None:
        """Take the tightest fitting extent, or None if there is none that fits."""
        size = round_up(num_bytes)
        if size == 0:
            return Extent(0, 0)
        fitting = [extent for extent in self._free if extent.size_bytes >= size]
        if not fitting:
            return None
        best = min(fitting, key=lambda extent: (extent.size_bytes, extent.offset))
        taken = Extent(best.offset, size, list(best.busy))
        best.offset += size
        best.size_bytes -= size
        if best.size_bytes == 0:
            self._free.remove(best)
        self.free_bytes -= size
        return taken

    def give_back(self, extent: Extent) -> None:
        """Return an extent, joined with its free neighbours."""
        if extent.size_bytes == 0:
            return
        self.free_bytes += extent.size_bytes
        joined = Extent(extent.offset, extent.size_bytes, list(extent.busy))
        kept = []
        for other in self._free:
            if other.end == joined.offset or joined.end == other.offset:
                joined.offset = min(joined.offset, other.offset)
                joined.size_bytes += other.size_bytes
                joined.busy += other.busy
            else:
                kept.append(other)
        joined.busy = [future for future in joined.busy if not future.done()]
        self._free = [*kept, joined]
