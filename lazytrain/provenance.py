"""Where a number comes from: code, versions, machine and command, collected once.

The host's name is kept only as a hash, and paths below the working folder become
relative. Works outside a git checkout too: the commit is then ``unknown``, or what the
variable ``LAZYTRAIN_COMMIT`` says (a trailing ``-dirty`` marks local changes).
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from lazytrain.records import Provenance, sha256_text

COMMAND = "LAZYTRAIN_COMMAND"
RESULTS = "results"
PACKAGES = (
    "lazytrain",
    "torch",
    "transformers",
    "deepspeed",
    "liger-kernel",
    "pyscipopt",
    "numpy",
    "triton",
)


@dataclass(frozen=True)
class Gpu:
    """The first visible NVIDIA GPU: its name, id and memory in bytes."""

    name: str
    uuid: str
    memory_bytes: int


@cache
def first_gpu() -> Gpu | None:
    """Return the GPU that a process here would use, or None without one.

    Asks NVML, not torch, so that a Snakefile can call it at parse time.
    ``CUDA_VISIBLE_DEVICES`` is honoured: set but empty means no GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in {"", "-1"}:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = _handle((visible or "0").split(",")[0].strip())
        return Gpu(
            name=str(pynvml.nvmlDeviceGetName(handle)),
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _handle(visible: str) -> object:
    """Return NVML's handle of an index or of a GPU-... id."""
    import pynvml

    if visible.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(visible))
    return pynvml.nvmlDeviceGetHandleByUUID(visible)


@cache
def cpu_name() -> str:
    """Return the processor's model name as the kernel gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def device_name(accelerator: str = "") -> str:
    """Return the name of the device that a run really uses.

    Args:
        accelerator: A sheet id; ``cpu`` names the processor even beside a GPU.
    """
    gpu = None if accelerator.split("-")[0] == "cpu" else first_gpu()
    return gpu.name if gpu else cpu_name()


def num_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _git(*arguments: str) -> str | None:
    """Return git's answer in the package's folder, or None where it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def _commit() -> tuple[str, bool]:
    """Return (commit, dirty) of the code that is running.

    A package installed below somebody else's checkout is no part of that checkout,
    so the file itself must be tracked.
    """
    given = os.environ.get("LAZYTRAIN_COMMIT")
    if given:
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    commit = _git("rev-parse", "HEAD") if tracked is not None else None
    if commit is None:
        return "unknown", False
    return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """Return this process's command without the folders of its machine.

    Paths below the working folder become relative; others begin at a folder called
    results, if they lie in one, and keep their last two names otherwise. A
    process that was started for one run alone names the command behind it.
    """
    if COMMAND in os.environ:
        return os.environ[COMMAND]
    words = [Path(sys.argv[0]).name, *(_portable(word) for word in sys.argv[1:])]
    return shlex.join(words)


def _portable(word: str) -> str:
    """Return a word of a command with its path, if it is or ends in one, shortened."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    if path.is_relative_to(Path.cwd()):
        return f"{option}{equals}{path.relative_to(Path.cwd())}"
    known = [place for place, name in enumerate(path.parts) if name == RESULTS]
    kept = path.parts[known[-1] :] if known else path.parts[1:][-2:]
    return f"{option}{equals}{Path(*kept)}"


def _started() -> datetime:
    """Return when this process began; a record is made at the end of a run."""
    return datetime.fromtimestamp(psutil.Process().create_time(), UTC)


def remember_code() -> None:
    """Note the commit now: a checkout during a run must not change its record."""
    _commit()


def collect(
    accelerator: str = "", made_from: Mapping[str, str] | None = None
) -> Provenance:
    """Collect the provenance of a number that is about to be measured.

    Args:
        accelerator: The sheet id the number belongs to; decides the device's name.
        made_from: sha256 of each file the number was made from, by role.
    """
    commit, dirty = _commit()
    return Provenance(
        commit=commit,
        dirty=dirty,
        command=command_line(),
        started=_started().isoformat(timespec="seconds"),
        hostname_sha256=sha256_text(socket.gethostname()),
        device=device_name(accelerator),
        cpu=cpu_name(),
        cores=num_cores(),
        memory_bytes=psutil.virtual_memory().total,
        versions=dict(_versions()),
        made_from=dict(made_from or {}),
    )
