"""The posix backend: O_DIRECT where the file system takes it, aligned bounce buffers.

Memory that is aligned already goes to the disk without a copy. Everything else passes
through a small ring of page-aligned buffers, one per I/O thread, allocated at start.
"""

from __future__ import annotations

import errno
import mmap
import os
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from torch import Tensor

from lazytrain.tiers.backend import failed_call, short_transfer
from lazytrain.tiers.extents import ALIGN_BYTES, round_up
from lazytrain.tiers.file_layer import FileLayer
from lazytrain.tiers.integrity import Bytes
from lazytrain.tiers.tier import StorageFault

# What a file system says to O_DIRECT that it does not want.
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT)


def _aligned(data: Bytes) -> bool:
    """Return whether O_DIRECT can use this memory as it is."""
    return data.ctypes.data % ALIGN_BYTES == 0 and data.size % ALIGN_BYTES == 0


class PosixBackend:
    """Positional reads and writes with plain system calls.

    Args:
        path: The tier's file, preallocated.
        chunk_bytes: Largest range of one call; the size of a bounce buffer.
        num_buffers: Bounce buffers in the ring.
        layer: The system calls.
    """

    name = "posix"
    takes_device = False

    def __init__(
        self, path: Path, chunk_bytes: int, num_buffers: int, layer: FileLayer
    ) -> None:
        self._path = path
        self._layer = layer
        self._ring: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        for _ in range(num_buffers):
            # An anonymous map starts on a page and is not zeroed twice.
            memory = mmap.mmap(-1, round_up(chunk_bytes))
            self._ring.put(np.frombuffer(memory, dtype=np.uint8))
        self.direct, self.note = True, ""
        self._zero_copy = True
        self._descriptor = self._open_direct()

    def _open_direct(self) -> int:
        """Open with O_DIRECT and prove it with one read, or open without and say so."""
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = self._layer.open(self._path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            return self._open_buffered(error)
        try:
            with self._bounce() as buffer:
                view = buffer[:ALIGN_BYTES].data
                self._layer.read(descriptor, view, 0)
        except OSError as error:
            self._layer.close(descriptor)
            return self._open_buffered(error)
        return descriptor

    def _open_buffered(self, error: OSError) -> int:
        """Open through the page cache after O_DIRECT was refused."""
        if error.errno not in _REFUSALS:
            raise failed_call("tier", self._path, "open", error) from error
        self.direct = False
        self.note = f"O_DIRECT refused by the file system: {error.strerror}"
        return self._layer.open(self._path, os.O_RDWR | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _bounce(self) -> Iterator[Bytes]:
        """Lend one aligned buffer of the ring; waits while all are in use."""
        buffer = self._ring.get()
        try:
            yield buffer
        finally:
            self._ring.put(buffer)

    def _takes_as_is(self, data: Bytes) -> bool:
        """Return whether this memory needs no bounce buffer."""
        return not self.direct or (self._zero_copy and _aligned(data))

    def _try_as_is(self, transfer: Callable[[], None]) -> bool:
        """Run a transfer; False if the kernel cannot pin this kind of memory."""
        try:
            transfer()
        except StorageFault as fault:
            cause = fault.__cause__
            if not (isinstance(cause, OSError) and cause.errno == errno.EFAULT):
                raise
            self._zero_copy = False
            self.note = "O_DIRECT cannot use the caller's memory: bounce buffers"
            return False
        return True

    def write(self, key: str, offset: int, data: Tensor) -> None:
        """Write all of ``data`` at ``offset`` (both at most one chunk, see Backend)."""
        source = data.numpy()
        if self._takes_as_is(source) and self._try_as_is(
            lambda: self._write_all(key, offset, source)
        ):
            return
        with self._bounce() as buffer:
            padded = buffer[: round_up(source.size)]
            np.copyto(padded[: source.size], source)
            # Padding belongs to the same extent; zeros keep old bytes from living on.
            padded[source.size :] = 0
            self._write_all(key, offset, padded)

    def read(self, key: str, offset: int, out: Tensor) -> None:
        """Fill all of ``out`` from ``offset`` (at most one chunk, see Backend)."""
        target = out.numpy()
        if self._takes_as_is(target) and self._try_as_is(
            lambda: self._read_all(key, offset, target, target.size)
        ):
            return
        with self._bounce() as buffer:
            padded = buffer[: round_up(target.size)]
            self._read_all(key, offset, padded, target.size)
            np.copyto(target, padded[: target.size])

    def _resume_at(self, done: int) -> int:
        """Return where to go on after ``done`` bytes: O_DIRECT needs a block start."""
        return done - done % ALIGN_BYTES if self.direct else done

    def _write_all(self, key: str, offset: int, data: Bytes) -> None:
        """Write every byte, going on after short writes."""
        view, start, best = data.data, 0, -1
        while best < data.size:
            done = start + self._call(key, "write", view[start:], offset + start)
            if done <= best:
                raise short_transfer(key, self._path, "written", data.size, done)
            best, start = done, self._resume_at(done)

    def _read_all(self, key: str, offset: int, data: Bytes, needed: int) -> None:
        """Read at least ``needed`` bytes, going on after short reads."""
        view, start, best = data.data, 0, -1
        while best < needed:
            done = start + self._call(key, "read", view[start:], offset + start)
            if done <= best:
                raise short_transfer(key, self._path, "read", needed, done)
            best, start = done, self._resume_at(done)

    def _call(self, key: str, verb: str, view: memoryview, offset: int) -> int:
        """Make one system call and name its failure."""
        call = self._layer.write if verb == "write" else self._layer.read
        try:
            return call(self._descriptor, view, offset)
        except OSError as error:
            raise failed_call(key, self._path, verb, error) from error

    def close(self) -> None:
        """Close the file."""
        self._layer.close(self._descriptor)
