"""What of GPUDirect Storage is there: package, CUDA driver, kernel driver."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

NVIDIA_FS = Path("/proc/driver/nvidia-fs/stats")  # exists while nvidia-fs is loaded


@dataclass(frozen=True)
class GdsState:
    """What was seen.

    Attributes:
        can_import: Whether kvikio and the CUDA driver library are there.
        is_direct: Whether reads and writes would bypass host memory.
        reason: What was seen, in words.
        remedy: What to do to get GPUDirect Storage.
    """

    can_import: bool
    is_direct: bool
    reason: str
    remedy: str


def _loads(library: str) -> bool:
    """Return whether a shared library loads."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _import_failure() -> str | None:
    """Import kvikio; return what went wrong, or None."""
    try:
        importlib.import_module("kvikio")
    except (ImportError, OSError, RuntimeError) as error:  # a library of its own misses
        return str(error).splitlines()[0]
    return None


def probe_gds(nvidia_fs: Path = NVIDIA_FS) -> GdsState:
    """Look for libcuda, kvikio and the nvidia-fs kernel driver."""
    if importlib.util.find_spec("kvikio") is None:
        remedy = "install it with `pip install 'lazytrain[gds]'`"
        return GdsState(False, False, "kvikio is not installed", remedy)
    if not _loads("libcuda.so.1"):
        remedy = "install the NVIDIA driver, or use the posix backend"
        return GdsState(False, False, "libcuda.so.1 does not load", remedy)
    failure = _import_failure()
    if failure is not None:
        remedy = "install it again with `pip install 'lazytrain[gds]'`"
        return GdsState(False, False, f"kvikio does not load: {failure}", remedy)
    if not nvidia_fs.exists():
        remedy = "load the nvidia-fs kernel driver, or use auto, compat or posix"
        return GdsState(True, False, f"{nvidia_fs} is missing", remedy)
    return GdsState(True, True, "nvidia-fs is loaded", "nothing to do")
