"""One run per GPU: an advisory lock file that names its holder.

Snakemake's ``gpu`` resource counts devices but knows no ids, and knows nothing of runs
started by hand.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazytrain.errors import LazyTrainError
from lazytrain.profile.accelerator import is_gpu
from lazytrain.provenance import first_gpu


class DeviceBusy(LazyTrainError):
    """Another process holds the device."""


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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 64, 0).decode(errors="replace").strip()
            raise DeviceBusy(
                f"device {device_id} is held by process {holder or 'unknown'} "
                f"(lock {path}); wait for it, or end it"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


@contextmanager
def hold_accelerator(accelerator: str) -> Iterator[None]:
    """Hold the GPU a sheet id runs on; rows of the CPU sheet need no lock."""
    gpu = first_gpu()
    if not is_gpu(accelerator) or gpu is None:
        yield
        return
    with hold(gpu.uuid):
        yield
