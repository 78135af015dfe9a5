"""How fast bytes move here: host to device and back, and to disk and back.

On a machine without a GPU the "device" is host memory too, and the link rates are those
of plain copies between two buffers; the profile's device name says so.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.records import DiskRates, LinkRates
from lazytrain.units import MIB

REPEATS = 5
DEPTH = 8  # as the NVMe tier's threads
_PIECE_BYTES = 4 * MIB
_ALIGNMENT = 4096


def fastest_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the fewest seconds that ``work`` took, after one call to warm up.

    The fewest, not the median: other work on the machine only ever adds time.
    """
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _buffers(num_bytes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a touched host buffer (pinned beside a GPU) and a device buffer."""
    host = torch.ones(num_bytes, dtype=torch.uint8)
    if device.type == "cuda":
        host = host.pin_memory()
    return host, torch.ones(num_bytes, dtype=torch.uint8, device=device)


def _together_s(copies: list[tuple[Tensor, Tensor]], device: torch.device) -> float:
    """Return seconds of one round of (target, source) copies run side by side."""
    if device.type == "cuda":
        cuda: Any = torch.cuda
        streams = [cuda.Stream(device) for _ in copies]

        def run() -> None:
            for (target, source), stream in zip(copies, streams, strict=True):
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)

        return fastest_s(run)
    with ThreadPoolExecutor(len(copies)) as pool:

        def run_on_threads() -> None:
            jobs = [pool.submit(target.copy_, source) for target, source in copies]
            for job in jobs:
                job.result()

        return fastest_s(run_on_threads)


def measure_link(device: torch.device, num_bytes: int = 256 * MIB) -> LinkRates:
    """Measure copies of ``num_bytes`` each way alone and both ways together.

    ``*_together`` is the rate of one direction while the other runs too.
    """
    host_down, device_down = _buffers(num_bytes, device)
    host_up, device_up = _buffers(num_bytes, device)
    up, down = (device_up, host_up), (host_down, device_down)
    both = num_bytes / _together_s([up, down], device)
    return LinkRates(
        h2d=num_bytes / _together_s([up], device),
        d2h=num_bytes / _together_s([down], device),
        h2d_together=both,
        d2h_together=both,
    )


def _pieces(path: Path, flags: int, num_bytes: int, is_write: bool) -> float:
    """Return seconds to write or read a file in pieces by DEPTH threads.

    Buffers are anonymous maps: page-aligned, as O_DIRECT demands.
    """
    buffers = [mmap.mmap(-1, _PIECE_BYTES) for _ in range(DEPTH)]
    for buffer in buffers:
        buffer.write(os.urandom(_ALIGNMENT) * (_PIECE_BYTES // _ALIGNMENT))
    handle = os.open(path, flags, 0o600)
    count = num_bytes // _PIECE_BYTES

    def move(thread: int) -> None:
        for piece in range(thread, count, DEPTH):
            offset = piece * _PIECE_BYTES
            call = os.pwrite if is_write else _read_into
            moved = call(handle, buffers[thread], offset)
            if moved != _PIECE_BYTES:
                wanted = f"moved {moved} of {_PIECE_BYTES} bytes at {offset}"
                raise InvalidInput("scratch", str(path), f"{wanted}: is the disk full?")

    try:
        start = time.perf_counter()
        with ThreadPoolExecutor(DEPTH) as pool:
            list(pool.map(move, range(DEPTH)))
        if is_write:
            os.fsync(handle)
        return time.perf_counter() - start
    finally:
        os.close(handle)
        for buffer in buffers:
            buffer.close()


def _read_into(handle: int, buffer: mmap.mmap, offset: int) -> int:
    """Read one piece at an offset into a buffer; return the bytes read."""
    return os.preadv(handle, [buffer], offset)


def _drop_cache(path: Path) -> None:
    """Ask the kernel to forget a file's pages, so that a read reaches the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def make_scratch(folder: Path) -> None:
    """Make the folder for NVMe files if it is not there.

    Raises:
        InvalidInput: If it cannot be made, or is no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = (
            f"cannot be made a folder ({error.strerror}); give a folder on a local "
            "disk that can be written, or leave it empty for the temporary one"
        )
        raise InvalidInput("scratch", str(folder), remedy) from error


def measure_disk(folder: Path, num_bytes: int = 256 * MIB) -> DiskRates:
    """Measure writing then reading a scratch file past the page cache.

    A first pass, which is not timed, gives the file its blocks, as the tier reserves
    them before a run.

    Where the file system refuses O_DIRECT the file is written through the cache and
    synced, and the record says ``direct: false``.

    Raises:
        InvalidInput: If the folder cannot take the file.
    """
    make_scratch(folder)
    path = folder / f".lazytrain-bandwidth-{os.getpid()}"
    create = os.O_CREAT | os.O_TRUNC
    try:
        try:
            _pieces(path, os.O_WRONLY | create | os.O_DIRECT, num_bytes, True)
            direct = os.O_DIRECT
        except OSError:
            direct = 0
            _pieces(path, os.O_WRONLY | create, num_bytes, True)
        write_s = _pieces(path, os.O_WRONLY | direct, num_bytes, True)
        _drop_cache(path)
        read_s = _pieces(path, os.O_RDONLY | direct, num_bytes, False)
    except OSError as error:
        remedy = f"{error.strerror}; give a folder on a local disk with room"
        raise InvalidInput("scratch", str(folder), remedy) from error
    finally:
        path.unlink(missing_ok=True)
    return DiskRates(
        write=num_bytes / write_s,
        read=num_bytes / read_s,
        depth=DEPTH,
        direct=bool(direct),
    )
