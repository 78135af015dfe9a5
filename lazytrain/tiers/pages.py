"""What the tier's file holds under each key, and which transfers still touch it."""

from __future__ import annotations

from concurrent.futures import Future

from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.tiers.extents import Extent, Extents
from lazytrain.tiers.tier import TierFull

_POISON = 0xFF  # every float format reads all ones as NaN


class Page:
    """One value of one key. A new put makes a new page, also in the same place.

    Args:
        key: The key.
        extent: Where it lies in the file.
        num_bytes: Its exact length.
        chunk_bytes: Length of all its chunks but the last.
        generation: Number of puts in this tier up to this one.
    """

    def __init__(
        self,
        key: str,
        extent: Extent,
        num_bytes: int,
        chunk_bytes: int,
        generation: int,
    ) -> None:
        self.key = key
        self.extent = extent
        self.num_bytes = num_bytes
        self.generation = generation
        self.num_chunks = -(-num_bytes // chunk_bytes)
        self.checks = [0] * self.num_chunks
        self.is_proven = False
        self.put: Future[None] | None = None
        self._fetches: list[Future[None]] = []
        self._chunk_bytes = chunk_bytes
        self._is_written = False
        self._error: BaseException | None = None

    def chunk(self, index: int) -> slice:
        """Return a chunk's bytes within the page."""
        start = index * self._chunk_bytes
        return slice(start, min(start + self._chunk_bytes, self.num_bytes))

    def offset_of(self, index: int) -> int:
        """Return where a chunk starts in the file."""
        return self.extent.offset + index * self._chunk_bytes

    def running_put(self) -> list[Future[None]]:
        """Return the page's put while it runs."""
        return [self.put] if self.put is not None and not self.put.done() else []

    def running(self) -> list[Future[None]]:
        """Return every transfer that still touches the page."""
        fetches = [future for future in self._fetches if not future.done()]
        return [*self.running_put(), *fetches]

    def add_fetch(self, future: Future[None]) -> None:
        """Remember a fetch, and forget those that ended."""
        self._fetches = [other for other in self._fetches if not other.done()]
        self._fetches.append(future)

    def written(self, error: BaseException | None) -> BaseException | None:
        """Take note of how the put ended."""
        self._error = error
        self._is_written = error is None
        return error

    def raise_if_not_written(self) -> None:
        """Raise the put's error, so that no older bytes are ever taken for these."""
        if self._error is not None:
            raise self._error
        if not self._is_written:
            raise AssertionError(f"{self.key} was fetched before its put had ended")

    def fetched(
        self, target: Tensor, error: BaseException | None
    ) -> BaseException | None:
        """Take note of how a fetch ended; after a failure the buffer is poisoned."""
        if error is None:
            self.is_proven = True
        else:
            target.fill_(_POISON)
        return error


class PageBook:
    """Keys and their pages. Not thread-safe: the tier holds its lock.

    Args:
        capacity_bytes: Size of the file.
        chunk_bytes: Chunk length of every page.
    """

    def __init__(self, capacity_bytes: int, chunk_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._chunk_bytes = chunk_bytes
        self._extents = Extents(capacity_bytes)
        self._pages: dict[str, Page] = {}
        self._generation = 0

    @property
    def used_bytes(self) -> int:
        """Bytes taken, in whole blocks."""
        return self._capacity_bytes - self._extents.free_bytes

    def place(self, key: str, num_bytes: int) -> tuple[Page, list[Future[None]]]:
        """Return a fresh page for a put, and the transfers it must wait for.

        A value of the same size stays in its place.

        Raises:
            TierFull: If no free extent is large enough; the old value is kept.
        """
        old = self._pages.get(key)
        if old is not None and old.num_bytes == num_bytes:
            extent, before = old.extent, [*old.extent.busy, *old.running()]
        else:
            extent = self._take(key, num_bytes)
            before = list(extent.busy)
            if old is not None:
                self.release(key)
        extent.busy = [future for future in before if not future.done()]
        self._generation += 1
        page = Page(key, extent, num_bytes, self._chunk_bytes, self._generation)
        self._pages[key] = page
        return page, before

    def known(self, key: str, num_bytes: int) -> Page:
        """Return the page of a key.

        Raises:
            InvalidInput: If there is none, or its length is another.
        """
        page = self._pages.get(key)
        if page is None:
            raise InvalidInput(
                "key", key, "nothing was put under it, or it is released"
            )
        if page.num_bytes != num_bytes:
            remedy = f"{key} holds {page.num_bytes} B: pass a tensor of that size"
            raise InvalidInput("out", f"{num_bytes} B", remedy)
        return page

    def release(self, key: str) -> None:
        """Forget a key; its space carries the transfers that still touch it.

        Raises:
            InvalidInput: If the key is unknown.
        """
        page = self._pages.pop(key, None)
        if page is None:
            raise InvalidInput(
                "key", key, "nothing was put under it, or it is released"
            )
        page.extent.busy = [*page.extent.busy, *page.running()]
        self._extents.give_back(page.extent)

    def _take(self, key: str, num_bytes: int) -> Extent:
        """Take space for a key."""
        extent = self._extents.take(num_bytes)
        if extent is None:
            detail = (
                f"{key}: {self._extents.free_bytes:,} of {self._capacity_bytes:,} B "
                f"are free, the largest piece has {self._extents.largest_bytes():,} B; "
                "raise the NVMe budget of the plan"
            )
            raise TierFull(num_bytes, detail)
        return extent
