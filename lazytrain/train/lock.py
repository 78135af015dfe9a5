"""One run per GPU and per folder: advisory lock files that name their holder.

Snakemake's ``gpu`` resource counts devices but knows no ids, and knows nothing of runs
started by hand.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lazytrain.errors import InvalidInput, LazyTrainError
from lazytrain.profile.accelerator import is_gpu
from lazytrain.provenance import first_gpu
from lazytrain.records import make_folder

log = logging.getLogger(__name__)
OUT_LOCK: Final = ".lock"
# File systems that cannot lock, some network ones among them.
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class DeviceBusy(LazyTrainError):
    """Another process holds the device."""


class OutBusy(InvalidInput):
    """Another run writes into the folder."""


def lock_path(device_id: str, folder: Path | None = None) -> Path:
    """Return the lock file of a device; all users of the machine share it."""
    return (folder or Path(tempfile.gettempdir())) / f"lazytrain-{device_id}.lock"


@contextmanager
def hold(device_id: str, folder: Path | None = None) -> Iterator[None]:
    """Hold a device for the time of the block.

    The kernel releases the lock with the process, so a killed run leaves no stale one.

    Raises:
        DeviceBusy: If another process holds it; the message has its pid.
    """
    path = lock_path(device_id, folder)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        holder = _take(handle)
        if holder is not None:
            raise DeviceBusy(
                f"device {device_id} is held by process {holder} "
                f"(lock {path}); wait for it, or end it"
            )
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> str | None:
    """Lock an open file and write our pid into it; return the pid of who has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 64, 0).decode(errors="replace").strip() or "unknown"
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return None


@contextmanager
def hold_out(out: Path) -> Iterator[None]:
    """Hold a run's folder for the time of the block; it is made if it is not there.

    Where the file system has no locks the run goes on without, and says so.

    Raises:
        OutBusy: If another run holds it; the message has its pid.
        InvalidInput: If the folder cannot be made or written.
    """
    make_folder(out, "out")
    path = out / OUT_LOCK
    handle = _open_out(path, out)
    try:
        yield
    finally:
        # First the name, then the lock: who waits for neither sees a free folder.
        path.unlink(missing_ok=True)
        os.close(handle)


def _open_out(path: Path, out: Path) -> int:
    """Return the locked file of a folder; a holder that ends takes its file along."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            holder = _take(handle)
            if holder is not None:
                remedy = f"process {holder} is writing it; wait for it, or give another"
                raise OutBusy("out", str(out), remedy)
            if _is_still(path, handle):
                return handle
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                log.warning("%s cannot be locked: keep other runs off it", out)
                return handle
            os.close(handle)
            raise
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    """Say whether a path names the open file, not one made since, nor nothing."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def hold_accelerator(accelerator: str) -> Iterator[None]:
    """Hold the GPU a sheet id runs on; rows of the CPU sheet need no lock."""
    gpu = first_gpu()
    if not is_gpu(accelerator) or gpu is None:
        yield
        return
    with hold(gpu.uuid):
        yield
