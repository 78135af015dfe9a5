"""The scratch disk: file system, space, O_DIRECT, rates and GPUDirect Storage."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lazytrain.doctor.report import Check
from lazytrain.errors import InvalidInput
from lazytrain.tiers.gds_probe import probe_gds
from lazytrain.units import GIB, MIB, format_bytes, format_rate

_IN_MEMORY = {"tmpfs", "ramfs"}
_REMOTE = {"nfs", "nfs4", "cifs", "9p", "lustre", "ceph", "fuse.sshfs"}
_PROBE_BYTES = 64 * MIB


def checks(scratch: Path) -> Iterator[Check]:
    """Yield the checks of the scratch folder's disk."""
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=scratch):
            pass
    except OSError as error:
        remedy = "name a writable folder with --scratch"
        value = f"{scratch}: {error.strerror}"
        yield Check(name="scratch", value=value, verdict="fail", remedy=remedy)
        return
    yield file_system(scratch, file_system_of(scratch))
    yield _space(scratch)
    yield from _rates(scratch)
    yield gds()


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that a path lies on.

    Args:
        path: Any existing path.
        mounts: Text in the form of ``/proc/self/mounts``; read from there if None.
    """
    if mounts is None:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    resolved = path.resolve()
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        # Spaces in a mount point are written as \040.
        point, name = line.split()[1:3]
        place = Path(point.replace("\\040", " "))
        # A later mount on the same point hides the earlier one.
        if resolved.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), name
    return kind


def file_system(scratch: Path, kind: str) -> Check:
    """Judge the type of a file system."""
    value = f"{scratch} on {kind}"
    if kind in _IN_MEMORY:
        remedy = "this is memory, not a disk: set scratch to a folder on the NVMe disk"
        return Check(name="scratch", value=value, verdict="fail", remedy=remedy)
    if kind in _REMOTE:
        remedy = "a network file system is slow and shares its lock: use a local disk"
        return Check(name="scratch", value=value, verdict="warn", remedy=remedy)
    return Check(name="scratch", value=value, verdict="ok")


def _space(scratch: Path) -> Check:
    """Compare free space with what a run may reserve."""
    free = shutil.disk_usage(scratch).free
    if free < 20 * GIB:
        remedy = "plans with NVMe homes need up to 30 GiB: free space, see clean"
        value = format_bytes(free)
        return Check(name="disk space", value=value, verdict="warn", remedy=remedy)
    return Check(name="disk space", value=format_bytes(free), verdict="ok")


def _rates(scratch: Path) -> Iterator[Check]:
    """Measure the disk and say whether it took O_DIRECT."""
    from lazytrain.profile.bandwidth import measure_disk

    try:
        rates = measure_disk(scratch, _PROBE_BYTES)
    except InvalidInput as error:
        remedy = "check the disk and its mount options"
        yield Check(name="disk rate", value=str(error), verdict="fail", remedy=remedy)
        return
    if rates.direct:
        yield Check(name="O_DIRECT", value="taken", verdict="ok")
    else:
        remedy = "pages pass through the cache and compete for memory: use ext4 or xfs"
        yield Check(name="O_DIRECT", value="refused", verdict="warn", remedy=remedy)
    value = (
        f"write {format_rate(rates.write)}, read {format_rate(rates.read)} "
        f"({rates.depth} in flight)"
    )
    if min(rates.write, rates.read) < 1e9:
        remedy = "the planner will give this disk little: use a local NVMe disk"
        yield Check(name="disk rate", value=value, verdict="warn", remedy=remedy)
    else:
        yield Check(name="disk rate", value=value, verdict="ok")


def gds() -> Check:
    """Say whether GPUDirect Storage works, and what is missing otherwise."""
    state = probe_gds()
    if state.is_direct:
        return Check(name="GDS", value=state.reason, verdict="ok")
    value, remedy = f"not available: {state.reason}", state.remedy
    return Check(name="GDS", value=value, verdict="warn", remedy=remedy)


def default_scratch() -> Path:
    """Return the folder that runs use when the configuration names none."""
    return Path(tempfile.gettempdir())
