"""Which rows of the run sheet this machine can measure.

A sheet id is ``cpu``, a class (``gpu24``, ``gpu80``) or a card (``h200``), optionally
with the machine's host memory in GiB (``h200-256g``) and a cap on device memory in GiB
(``h200-cap70``, ``h200-256g-cap70``). ``auto`` picks a class. An id that the
machine lacks is an error, never a quiet substitute. No heavy import: a Snakefile
resolves its accelerator at parse time.
"""

from __future__ import annotations

import re

from lazytrain.errors import InvalidInput
from lazytrain.provenance import Gpu, first_gpu
from lazytrain.units import GIB

GB = 10**9
# class -> device memory in bytes, from (inclusive) and to (exclusive)
CLASSES: dict[str, tuple[int, int]] = {
    "gpu24": (20 * GB, 60 * GB),
    "gpu80": (60 * GB, 10**15),
}
SHEET_IDS = (
    "cpu",
    "gpu24",
    "gpu80",
    "h200",
    "h200-cap70",
    "h200-cap24",
    "h200-256g",
    "h200-256g-cap70",
)
_ID = re.compile(
    r"(?P<machine>(?P<base>[a-z0-9]+)(?:-[1-9][0-9]*g)?)(?:-cap(?P<cap>[1-9][0-9]*))?"
)


def _automatic(gpu: Gpu | None) -> str:
    """Return the class of a GPU; ``cpu`` without one or with less than 20 GB."""
    for name, (low, high) in CLASSES.items():
        if gpu is not None and low <= gpu.memory_bytes < high:
            return name
    return "cpu"


def _found(gpu: Gpu | None) -> str:
    """Say what the machine has."""
    if gpu is None:
        return "this machine has no NVIDIA GPU"
    return f"this machine has one {gpu.name} with {gpu.memory_bytes / GB:.0f} GB"


def _is_here(base: str, gpu: Gpu | None) -> bool:
    """Whether the machine has what an id without its cap names."""
    if base == "cpu":
        return True
    if gpu is None:
        return False
    if base in CLASSES:
        low, high = CLASSES[base]
        return low <= gpu.memory_bytes < high
    return base in gpu.name.lower().replace(" ", "")


def resolve_accelerator(text: str) -> str:
    """Turn ``auto`` or a sheet id into a sheet id that this machine can run.

    Raises:
        InvalidInput: If the id is malformed, or names what is not here.
    """
    gpu = first_gpu()
    if text == "auto":
        return _automatic(gpu)
    match = _ID.fullmatch(text)
    if match is None or (match["base"] == "cpu" and text != "cpu"):
        raise InvalidInput(
            "accelerator", text, f"write auto or a sheet id ({', '.join(SHEET_IDS)})"
        )
    if not _is_here(match["base"], gpu):
        raise InvalidInput(
            "accelerator",
            text,
            f"{_found(gpu)}; write {_automatic(gpu)}, or auto",
        )
    cap = cap_bytes(text)
    if cap is not None and gpu is not None and cap > gpu.memory_bytes:
        raise InvalidInput("accelerator", text, f"the cap is too large: {_found(gpu)}")
    return text


def cap_bytes(accelerator: str) -> int | None:
    """Return the cap on device memory that a sheet id names, in bytes."""
    match = _ID.fullmatch(accelerator)
    if match is None or match["cap"] is None:
        return None
    return int(match["cap"]) * GIB


def base_of(accelerator: str) -> str:
    """Return the device that a sheet id names, without host memory and cap."""
    return accelerator.split("-")[0]


def machine_of(accelerator: str) -> str:
    """Return the machine that a sheet id names, without the cap."""
    match = _ID.fullmatch(accelerator)
    return match["machine"] if match else accelerator


def is_gpu(accelerator: str) -> bool:
    """Whether a sheet id's rows run on a GPU."""
    return base_of(accelerator) != "cpu"


def describe_choice(asked: str, chosen: str) -> str:
    """Return one line: what was chosen, why, and how to choose otherwise."""
    why = "asked for" if asked == chosen else _found(first_gpu())
    return (
        f"accelerator: {chosen} ({why}); "
        f"override with --config accelerator=ID, ID one of {', '.join(SHEET_IDS)}"
    )
