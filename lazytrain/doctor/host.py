"""Cores, memory, its rate, its limits and its nodes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from lazytrain.doctor.report import Check
from lazytrain.units import GIB, MIB, format_bytes, format_rate

_NODES = Path("/sys/devices/system/node")
_SMALL_LOCK_BYTES = 64 * MIB
_SLOW_DRAM_BYTES_PER_S = 20e9


def checks() -> Iterator[Check]:
    """Yield the checks of the host."""
    yield _memory()
    yield pinned_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield numa(_NODES)
    yield _dram_rate()


def _memory() -> Check:
    """Compare the memory that can be had with what a run needs."""
    from lazytrain.profile.memory import cgroup_available_bytes, host_available_bytes

    available, group = host_available_bytes(), cgroup_available_bytes()
    limited = f", cgroup leaves {format_bytes(group)}" if group is not None else ""
    value = f"{format_bytes(available)} available{limited}"
    if available < 16 * GIB:
        remedy = "3B needs some 40 GiB; use 8-bit state or optimizer state on NVMe"
        return Check(name="memory", value=value, verdict="warn", remedy=remedy)
    return Check(name="memory", value=value, verdict="ok")


def pinned_limit(limit_bytes: int) -> Check:
    """Judge the limit on locked memory (``ulimit -l``)."""
    if limit_bytes == resource.RLIM_INFINITY:
        return Check(name="pinned limit", value="unlimited", verdict="ok")
    value = format_bytes(limit_bytes)
    if limit_bytes < _SMALL_LOCK_BYTES:
        remedy = (
            "CUDA pins outside this limit, mlock and io_uring within it; if pinning "
            "fails, raise memlock in /etc/security/limits.conf or run with --ulimit"
        )
        return Check(name="pinned limit", value=value, verdict="warn", remedy=remedy)
    return Check(name="pinned limit", value=value, verdict="ok")


def numa(nodes: Path) -> Check:
    """Count memory nodes: across nodes, copies to the GPU lose rate."""
    found = sorted(entry.name for entry in nodes.glob("node[0-9]*"))
    if len(found) > 1:
        remedy = "bind the run to the GPU's node: numactl --cpunodebind=N --membind=N"
        value = f"{len(found)} nodes"
        return Check(name="numa", value=value, verdict="warn", remedy=remedy)
    return Check(name="numa", value=f"{len(found) or 1} node", verdict="ok")


def _dram_rate() -> Check:
    """Measure host copies, counted as read plus write."""
    import torch

    from lazytrain.profile.bandwidth import measure_link

    rate = 2 * measure_link(torch.device("cpu"), 128 * MIB).h2d
    value = f"{format_rate(rate)} read + write, {torch.get_num_threads()} threads"
    if rate < _SLOW_DRAM_BYTES_PER_S:
        remedy = "the CPU optimizer will gate the step: stop other jobs, fill all slots"
        return Check(name="DRAM rate", value=value, verdict="warn", remedy=remedy)
    return Check(name="DRAM rate", value=value, verdict="ok")
