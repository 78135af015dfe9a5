"""What an earlier run left in a new run's folder: set aside until the new one is done.

Without it, the weights and the record of the earlier run would pass for those of a new
one that failed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
SEARCH: Final = "search.json"
RESULTS: Final = (
    "record.json",
    "weights",
    "eval.json",
    "plan_vs_measured.json",
    SEARCH,
)
# What a run gathers on its way, and goes on with when it is resumed.
GATHERED: Final = ("initial", "steps.jsonl", "evaluations.jsonl", "predictions")
_ASIDE: Final = ".previous"


def set_aside(out: Path, names: Iterable[str] = RESULTS) -> None:
    """Rename results of an earlier run to ``NAME.previous``, in place of older ones."""
    for name in names:
        path = out / name
        if path.exists():
            aside = _aside(path)
            _remove(aside)
            path.rename(aside)
            log.warning("%s is of an earlier run: now %s", path, aside.name)


def discard(out: Path, names: Iterable[str] = (*RESULTS, *GATHERED)) -> None:
    """Remove what was set aside and is there anew."""
    for name in names:
        if (out / name).exists():
            _remove(_aside(out / name))


def _aside(path: Path) -> Path:
    return path.with_name(path.name + _ASIDE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
