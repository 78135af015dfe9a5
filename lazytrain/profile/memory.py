"""How much memory a machine can give, and how much a process has taken.

A container's cgroup limit counts as much as the machine's memory: the kernel ends a
process at either, without a message.
"""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import psutil
import torch

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


def _read_bytes(path: Path) -> int | None:
    """Return the number a cgroup file holds; None for ``max`` or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    return int(text)


def _own_cgroup() -> Path:
    """Return the folder of this process's cgroup (v2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return _CGROUP
    for line in lines:
        if line.startswith("0::"):
            return _CGROUP / line.removeprefix("0::").lstrip("/")
    return _CGROUP


def _room(folder: Path, limit_name: str, usage_name: str) -> int | None:
    """Return limit minus usage of one cgroup folder, or None without a limit."""
    limit = _read_bytes(folder / limit_name)
    if limit is None:
        return None
    return max(0, limit - (_read_bytes(folder / usage_name) or 0))


def cgroup_available_bytes() -> int | None:
    """Return what the tightest cgroup above this process has left, in bytes."""
    rooms = []
    folder = _own_cgroup()
    while folder == _CGROUP or _CGROUP in folder.parents:
        rooms.append(_room(folder, "memory.max", "memory.current"))
        folder = folder.parent
    rooms.append(
        _room(_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    return min((room for room in rooms if room is not None), default=None)


def host_available_bytes() -> int:
    """Return host memory that can be had now: MemAvailable and the cgroup's room."""
    available = int(psutil.virtual_memory().available)
    room = cgroup_available_bytes()
    return available if room is None else min(available, room)


def disk_free_bytes(folder: Path) -> int:
    """Return free bytes of the file system that a folder lies on."""
    return shutil.disk_usage(folder).free


def host_peak_bytes() -> int:
    """Return the peak resident set of this process in bytes.

    The kernel's ``VmHWM`` starts anew with a program; ``ru_maxrss`` would still hold
    the peak of whoever started it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu_peak_bytes() -> int:
    """Return the most bytes the allocator reserved; 0 where CUDA is not in use.

    Reserved, not allocated: a cap has to hold what the allocator keeps.
    """
    cuda: Any = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return 0
    return int(cuda.max_memory_reserved())


def gpu_memory_bytes(device: torch.device) -> int:
    """Return a device's total memory in bytes; 0 for the CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def gpu_context_bytes(device: torch.device) -> int:
    """Return what the CUDA context takes outside the allocator, in bytes.

    Memory of other processes counts as context: it is as much out of reach.
    """
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
