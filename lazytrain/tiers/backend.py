"""What a backend owes the tier: whole ranges of one file, moved or refused.

A buffer is a contiguous one-dimensional uint8 tensor; host memory always, device memory
where ``takes_device`` says so. Calls block and come from the tier's own threads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from lazytrain.tiers.tier import StorageFault

BackendName = Literal["auto", "gds", "compat", "posix"]


class Backend(Protocol):
    """Blocking access to the tier's file."""

    name: str
    direct: bool
    takes_device: bool
    note: str

    def write(self, key: str, offset: int, data: Tensor) -> None:
        """Write all of ``data`` at ``offset``.

        Raises:
            StorageFault: If not all bytes could be written.
        """
        ...

    def read(self, key: str, offset: int, out: Tensor) -> None:
        """Fill all of ``out`` from ``offset``.

        Raises:
            StorageFault: If not all bytes could be read.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def short_transfer(
    key: str, path: Path, verb: str, expected: int, found: int
) -> StorageFault:
    """Return the error for a transfer that stopped early."""
    remedy = "the file was truncated or the disk failed; free the disk and start again"
    return StorageFault(key, path, f"{expected} B {verb}", f"{found} B {verb}", remedy)


def failed_call(key: str, path: Path, verb: str, error: OSError) -> StorageFault:
    """Return the error for a system call that failed."""
    found = f"{error.strerror or error} (errno {error.errno})"
    remedy = "check the disk, its mount options and its free space"
    return StorageFault(key, path, f"{verb} to succeed", found, remedy)
