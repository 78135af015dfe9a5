"""Whether a system can run on this machine at all, asked before any job starts.

Light: a Snakefile may call it at parse time to print reasons and remedies.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import re
import shutil
from pathlib import Path

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow, load_runs
from lazytrain.errors import InvalidInput
from lazytrain.models.scales import SHAPES
from lazytrain.profile.accelerator import is_gpu

DEEPSPEED_SYSTEMS = systems.names("deepspeed")
SYSTEMS = systems.NAMES


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
DATA_SUFFIXES = (".json", ".jsonl", ".parquet", ".arrow")
BUILT_IN = {"data": "synthetic", "test_data": "", "weights": "random"}


def missing_input(config: PipelineConfig) -> str | None:
    """Return which configured file or folder does not exist, or None.

    What could be an id of the hub is left to the hub; a path is not.
    """
    for key, built_in in BUILT_IN.items():
        value = str(getattr(config, key))
        if value in {built_in, ""} or Path(value).exists():
            continue
        suffixes = DATA_SUFFIXES if key != "weights" else (".gguf",)
        if HUB_ID.fullmatch(value) and Path(value).suffix not in suffixes:
            continue
        choices = f"an existing path, a hub id or {BUILT_IN[key] or 'nothing'}"
        return f"{key} = {value!r}: there is no such file or folder; give {choices}"
    return None


def load_sheet(config: PipelineConfig) -> list[RunRow]:
    """Read the configured run sheet; every name in it must be one that is known.

    Raises:
        InvalidInput: If a row cannot be read, or names an accelerator without settings,
            or a system or model that does not exist.
    """
    rows = load_runs(Path(config.runs))
    known: dict[str, tuple[str, ...]] = {
        "accelerator": tuple(config.accelerators),
        "system": SYSTEMS,
        "model": tuple(SHAPES),
        "stands_for": tuple(SHAPES),
    }
    for row in rows:
        for column, names in known.items():
            value = getattr(row, column)
            if value not in names:
                place = f"(row {row.accelerator}/{row.scale}/{row.system}"
                remedy = f"choose one of {', '.join(names)} {place} of {config.runs})"
                raise InvalidInput(column, value, remedy)
    return rows


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _has_compiler() -> bool:
    return bool(shutil.which("g++") or shutil.which("c++"))


def _has_libaio() -> bool:
    header = Path("/usr/include/libaio.h")
    return ctypes.util.find_library("aio") is not None and header.exists()


def _deepspeed_lacks() -> str | None:
    """Return what DeepSpeed's own build of its operators would fail on."""
    if not _has("deepspeed"):
        return "DeepSpeed is not installed: pip install 'lazytrain[baselines]'"
    if not _has_compiler():
        return (
            "no C++ compiler, and DeepSpeed builds its CPU optimizer on first use: "
            "install g++ (Debian: apt-get install g++)"
        )
    if not (_has("ninja") or shutil.which("ninja")):
        return "no ninja, which builds DeepSpeed's operators: pip install ninja"
    return None


def why_not(system: str, accelerator: str) -> str | None:
    """Return why a system cannot run here and what to do, or None if it can.

    Args:
        system: A system of the run sheet.
        accelerator: The sheet id it would run on.
    """
    if system not in SYSTEMS:
        return f"unknown system: choose one of {', '.join(SYSTEMS)}"
    if system not in DEEPSPEED_SYSTEMS:
        return None
    lacking = _deepspeed_lacks()
    if lacking is not None:
        return lacking
    if system == "zero3-offload-liger":
        if not is_gpu(accelerator):
            return "Liger's kernels need a GPU: choose a GPU accelerator"
        if not _has("liger_kernel"):
            return "Liger is not installed: pip install liger-kernel"
    if system == "zero-infinity" and not _has_libaio():
        return (
            "no libaio, which DeepSpeed needs for NVMe: install its headers "
            "(Debian: apt-get install libaio-dev)"
        )
    return None
