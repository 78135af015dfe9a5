"""The note that stands in a plan's place where no schedule fits the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from lazytrain.records import Contract, M, read


class NoPlan(Contract):
    """Stands where an instance, a plan or its check would, if no schedule fits.

    A run that gets it records a memory limit; it is a result, not a failed job.
    """

    no_plan: Literal[True] = True
    name: str
    reason: str


def read_unless_none(kind: type[M], path: Path) -> M | NoPlan:
    """Read a file of a kind, or the note that stands in its place.

    Raises:
        InvalidInput: If the file is missing or is neither.
    """
    try:
        return NoPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return read(kind, path)
