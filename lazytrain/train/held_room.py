"""Room on the disk for a run's weights, taken before the first step.

A disk that others fill while a run trains would cost its weights at the end. A file of
their size and without a name takes their place meanwhile, and goes right before they
are written, or with the process, however that ends.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from lazytrain.errors import InvalidInput, is_disk_full
from lazytrain.profile.hardware import dtype_of
from lazytrain.units import MIB, format_bytes

log = logging.getLogger(__name__)
# Tokenizer, record, and lines that found no room before.
BESIDE_WEIGHTS_BYTES: Final = 16 * MIB


def weights_bytes(dtype: str, num_parameters: int) -> int:
    """Return what a run's trained weights take."""
    return num_parameters * dtype_of(dtype).itemsize


@contextmanager
def held(out: Path, weights_bytes: int) -> Iterator[Callable[[], None]]:
    """Hold the room of a run's weights in its folder; the value gives it back.

    A file system that cannot set room aside is left as it is: a full one is then told
    by what is written.

    Args:
        out: The run's folder.
        weights_bytes: What the weights take; 0 holds nothing.

    Raises:
        InvalidInput: If the room is not there.
    """
    if not weights_bytes:
        yield lambda: None
        return
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out) as file:
        _take(file, out, weights_bytes + BESIDE_WEIGHTS_BYTES)
        yield lambda: os.ftruncate(file.fileno(), 0)


def set_aside(descriptor: int, size_bytes: int) -> None:
    """Have the file system set room aside for a file.

    The kernel's own call: where it is not supported, ``os.posix_fallocate`` would write
    to every block instead, for minutes over a network.

    Raises:
        OSError: If there is no room, or the file system cannot do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        raise OSError(errno.ENOSYS, "no fallocate")
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(descriptor, 0, 0, size_bytes):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _take(file: IO[bytes], out: Path, size_bytes: int) -> None:
    try:
        set_aside(file.fileno(), size_bytes)
    except OSError as error:
        if is_disk_full(error):
            remedy = (
                f"has no room for the trained weights, {format_bytes(size_bytes)}: "
                "free some space or name another folder"
            )
            raise InvalidInput("out", str(out), remedy) from error
        log.info("%s: room for the weights is not held: %s", out, error)
