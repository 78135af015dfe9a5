"""The NVMe tier: tensors in one preallocated private file (paper, Sections 3.2, 3.4).

``put`` and ``fetch`` return tickets; what may run when follows from the keys alone:

- a fetch starts after the last put of its key has ended;
- a put starts after the last put and every fetch of its key have ended;
- a new key in freed space starts after every transfer that still touched that space.

Lengths and checksums are taken per chunk as bytes leave, and proven on the first read
after each put. Bytes that fail the proof are overwritten with 0xFF, which is NaN in
every float format, before the error is raised: they cannot be used by accident.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput, is_disk_full
from lazytrain.tiers.backend import Backend, BackendName
from lazytrain.tiers.choose import choose_backend
from lazytrain.tiers.extents import ALIGN_BYTES, round_up
from lazytrain.tiers.file_layer import FileLayer
from lazytrain.tiers.integrity import choose_checksum
from lazytrain.tiers.pages import Page, PageBook
from lazytrain.tiers.run_folder import DATA_FILE, RunFolder
from lazytrain.tiers.tier import StorageFault, Ticket, TierFull
from lazytrain.tiers.transfers import Transfer, TransferPool
from lazytrain.units import MIB

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 4 * MIB


def _as_bytes(name: str, data: Tensor) -> Tensor:
    """View a tensor as flat uint8 without a copy.

    Raises:
        InvalidInput: If the tensor is not contiguous.
    """
    if not data.is_contiguous():
        raise InvalidInput(name, tuple(data.stride()), "pass a contiguous tensor")
    return data.detach().reshape(-1).view(torch.uint8)


class NvmeTier:
    """A tier on a disk.

    Args:
        root: Scratch folder; the run's own directory is made below it.
        capacity_bytes: Reserved on the disk now, so that it cannot run out later.
        backend: ``auto`` takes ``gds`` where it really works, else ``posix``; a named
            backend is used or refused, never replaced.
        verify: Prove length and checksum on the first read of each put.
        num_threads: Transfers in flight on the disk.
        chunk_bytes: Largest piece of one call, a multiple of 4096.
        layer: System calls of the posix backend.

    Raises:
        InvalidInput: If the folder cannot be used or the backend is not there.
        TierFull: If the disk has not ``capacity_bytes`` left.
    """

    def __init__(
        self,
        root: Path,
        capacity_bytes: int,
        *,
        backend: BackendName = "auto",
        verify: bool = True,
        num_threads: int = 4,
        chunk_bytes: int = _CHUNK_BYTES,
        layer: FileLayer | None = None,
    ) -> None:
        if chunk_bytes < ALIGN_BYTES or chunk_bytes % ALIGN_BYTES:
            raise InvalidInput("chunk_bytes", chunk_bytes, "use a multiple of 4096")
        self.capacity_bytes = round_up(capacity_bytes)
        self._chunk_bytes = chunk_bytes
        self._verify = verify
        self._num_threads = num_threads
        layer = layer or FileLayer()
        self._folder = RunFolder(root)
        self.path = self._folder.path / DATA_FILE
        try:
            _reserve(self.path, self.capacity_bytes, layer)
            self._backend: Backend = choose_backend(
                backend, self.path, chunk_bytes, num_threads, layer
            )
        except BaseException:
            self._folder.remove()
            raise
        self.checksum_name, self._checksum = choose_checksum(self._backend.takes_device)
        self._book = PageBook(self.capacity_bytes, chunk_bytes)
        self._pool = TransferPool(num_threads)
        self._lock = threading.Lock()
        self._is_closed = False
        _LOG.info("NVMe tier: %s", self.describe())

    @property
    def backend(self) -> str:
        """Name of the backend at work: ``gds``, ``compat`` or ``posix``."""
        return self._backend.name

    @property
    def used_bytes(self) -> int:
        """Bytes of the file taken by keys, in whole 4096-byte blocks."""
        with self._lock:
            return self._book.used_bytes

    def describe(self) -> dict[str, str | int | bool]:
        """Return how this tier works, for the run's record."""
        return {
            "backend": self.backend,
            "direct": self._backend.direct,
            "verify": self._verify,
            "checksum": self.checksum_name if self._verify else "off",
            "capacity_bytes": self.capacity_bytes,
            "threads": self._num_threads,
            "chunk_bytes": self._chunk_bytes,
            "note": self._backend.note,
        }

    def put(self, key: str, data: Tensor) -> Ticket:
        """Store ``data`` under ``key``; an earlier value of the key is replaced.

        Args:
            key: Any name; errors carry it.
            data: Contiguous tensor, complete, in host memory (or on the GPU with
                ``gds``). It belongs to the tier until the ticket is done.

        Raises:
            InvalidInput: If the tensor cannot be taken or the tier is closed.
            TierFull: If no free extent is large enough.
        """
        source = self._checked("data", data)
        with self._lock:
            self._refuse_if_closed()
            page, before = self._book.place(key, source.numel())
            transfer = Transfer(
                page.num_chunks,
                lambda index: self._write_chunk(page, source, index),
                page.written,
            )
            page.put = transfer.future
            self._pool.start_after(transfer, before)
        return Ticket(transfer.future, source.numel())

    def fetch(self, key: str, out: Tensor) -> Ticket:
        """Read the value of ``key`` into ``out``, after an unfinished put of it.

        Args:
            key: A name that was put and not released.
            out: Contiguous tensor of exactly the stored size. Its content is undefined
                until the ticket is done, and all ones (NaN) if it ends in an error.

        Raises:
            InvalidInput: If the key is unknown or the size differs.
        """
        target = self._checked("out", out)
        with self._lock:
            self._refuse_if_closed()
            page = self._book.known(key, target.numel())
            transfer = Transfer(
                page.num_chunks,
                lambda index: self._read_chunk(page, target, index),
                lambda error: page.fetched(target, error),
            )
            before = page.running_put()
            page.add_fetch(transfer.future)
            self._pool.start_after(transfer, before)
        return Ticket(transfer.future, page.num_bytes)

    def release(self, key: str) -> None:
        """Forget a key; its space is free at once and reused only when it is quiet.

        Raises:
            InvalidInput: If the key is unknown.
        """
        with self._lock:
            self._book.release(key)

    def close(self) -> None:
        """Wait for running transfers, then remove the run's directory; repeatable."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._pool.close()
        self._backend.close()
        self._folder.remove()

    def __enter__(self) -> NvmeTier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor as flat bytes, or refuse its device or layout."""
        if tensor.device.type != "cpu" and not self._backend.takes_device:
            remedy = f"the {self.backend} backend moves host memory only"
            raise InvalidInput(name, str(tensor.device), remedy)
        return _as_bytes(name, tensor)

    def _refuse_if_closed(self) -> None:
        """Raise if the tier is closed."""
        if self._is_closed:
            raise InvalidInput("tier", "closed", "open a new one")

    def _write_chunk(self, page: Page, source: Tensor, index: int) -> None:
        """Write one chunk and keep its checksum."""
        chunk = source[page.chunk(index)]
        if self._verify:
            page.checks[index] = self._checksum(chunk)
        self._backend.write(page.key, page.offset_of(index), chunk)

    def _read_chunk(self, page: Page, target: Tensor, index: int) -> None:
        """Read one chunk and prove it, if nobody has yet."""
        page.raise_if_not_written()
        chunk = target[page.chunk(index)]
        self._backend.read(page.key, page.offset_of(index), chunk)
        if not self._verify or page.is_proven:
            return
        found = self._checksum(chunk)
        if found != page.checks[index]:
            start = page.offset_of(index)
            raise StorageFault(
                f"{page.key} (generation {page.generation})",
                self.path,
                f"checksum {page.checks[index]:#x} of bytes {start} to "
                f"{start + chunk.numel()}",
                f"{found:#x}",
                "the file was changed or the disk is failing; check it (smartctl)",
            )


def _reserve(path: Path, num_bytes: int, layer: FileLayer) -> None:
    """Create the tier's file, private, with all its blocks allocated.

    Raises:
        TierFull: If the disk has not enough space.
        InvalidInput: If the file cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = layer.open(path, flags, 0o600)
        try:
            if num_bytes:
                layer.reserve(descriptor, num_bytes)
        finally:
            layer.close(descriptor)
    except OSError as error:
        if not (is_disk_full(error) or error.errno == errno.EFBIG):
            remedy = f"{error.strerror}: name a writable folder on a local disk"
            raise InvalidInput("scratch", str(path), remedy) from error
        free = shutil.disk_usage(path.parent).free
        detail = (
            f"{path.parent} has {free:,} B free ({error.strerror}): free some space, "
            "name another scratch folder or lower the NVMe budget"
        )
        raise TierFull(num_bytes, detail) from error
