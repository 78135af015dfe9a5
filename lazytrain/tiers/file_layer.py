"""The few system calls the tier makes, behind one object that a test can replace."""

from __future__ import annotations

import os
from pathlib import Path


class FileLayer:
    """Positional reads and writes of one file; every call releases the GIL."""

    def open(self, path: Path, flags: int, mode: int) -> int:
        """Open a file and return its descriptor."""
        return os.open(path, flags, mode)

    def reserve(self, descriptor: int, num_bytes: int) -> None:
        """Allocate disk blocks for the first ``num_bytes``; OSError when full."""
        os.posix_fallocate(descriptor, 0, num_bytes)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read into a buffer; return the bytes read, which may be fewer."""
        return os.preadv(descriptor, [buffer], offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Write a buffer; return the bytes written, which may be fewer."""
        return os.pwritev(descriptor, [buffer], offset)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)
