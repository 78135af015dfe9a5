"""The protocol of a tier: put, fetch, release, and tickets that say when it is done.

A tier keeps named tensors somewhere outside the GPU's working set (paper, Section 3.2:
the homes of a boundary). ``put`` and ``fetch`` return at once; the only proof that a
transfer ended is its :class:`Ticket`.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Protocol

from torch import Tensor

from lazytrain.errors import LazyTrainError


class StorageFault(LazyTrainError):
    """Bytes could not be moved to or from storage, or came back different.

    Args:
        key: Name under which the tensor was put, such as ``boundary.7``.
        path: File or folder that failed.
        expected: What should have been there.
        found: What was there.
        remedy: What the user can do about it.
    """

    def __init__(
        self, key: str, path: Path, expected: object, found: object, remedy: str
    ) -> None:
        super().__init__(f"{key}: {path}: expected {expected}, found {found}: {remedy}")
        self.key = key
        self.path = path
        self.expected = expected
        self.found = found


class TierFull(LazyTrainError):
    """A tier, or the disk below it, cannot hold what was asked of it.

    Not an :class:`~lazytrain.errors.OutOfMemory`: that is a result of a run, while a
    full disk is the user's to empty.

    Args:
        requested_bytes: Size of the request that failed.
        detail: What asked, what is there and what to change.
    """

    def __init__(self, requested_bytes: int, detail: str) -> None:
        super().__init__(f"NVMe tier is full ({requested_bytes:,} B asked): {detail}")
        self.requested_bytes = requested_bytes


class Ticket:
    """A running transfer; nothing about its buffer may be assumed before it is done."""

    def __init__(self, future: Future[None], num_bytes: int) -> None:
        self._future = future
        self.num_bytes = num_bytes

    def done(self) -> bool:
        """Return whether the transfer ended, well or not; never blocks."""
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the transfer ended.

        Raises:
            StorageFault: If it failed; the message has path, expected and found.
            TimeoutError: If it is still running after ``timeout_s`` seconds. The buffer
                still belongs to the transfer then.
        """
        try:
            self._future.result(timeout_s)
        except FutureTimeout:
            if self._future.done():
                raise
            raise TimeoutError(f"transfer still running after {timeout_s} s") from None


class Tier(Protocol):
    """A place with a capacity where tensors wait under a name."""

    @property
    def capacity_bytes(self) -> int:
        """Bytes reserved for this tier."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes taken by what was put and not released."""
        ...

    @property
    def backend(self) -> str:
        """What moves the bytes, for the run's record."""
        ...

    def put(self, key: str, data: Tensor) -> Ticket:
        """Store a tensor; its buffer belongs to the tier until the ticket is done."""
        ...

    def fetch(self, key: str, out: Tensor) -> Ticket:
        """Read a tensor back into ``out``, after an unfinished put of the same key."""
        ...

    def release(self, key: str) -> None:
        """Forget a key and give its space back."""
        ...

    def close(self) -> None:
        """Wait for running transfers and remove whatever was kept."""
        ...
