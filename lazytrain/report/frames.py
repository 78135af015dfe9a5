"""Tables as typed rows: fixed column order, units in names, byte-stable CSV.

A table's columns are the fields of its row contract, in order. Cells are text that was
formatted once, here, so that the same records always give the same bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import StringConstraints, ValidationError

from lazytrain import systems
from lazytrain.errors import InvalidInput
from lazytrain.records import Contract, M, RunRecord, write_text

NOT_AVAILABLE: Final = "n/a"
NOT_RUN: Final = "not run"
HOST_OOM: Final = "host OOM"
DIVERGED: Final = "diverged"

Number = Annotated[str, StringConstraints(pattern=r"^(-?\d+(\.\d+)?)?$")]
"""A fixed-decimal number, or nothing."""
Measured = Annotated[
    str,
    StringConstraints(
        pattern=r"^(-?\d+(\.\d+)?|OOM|OOM@\d+|host OOM|diverged|not run|n/a)$",
    ),
]
"""What was measured: a number, a limit that was reached, or that nothing ran."""
Printed = Annotated[str, StringConstraints(pattern=r"^(\d+(\.\d+)?|OOM)?$")]
"""What the paper prints for the same cell; never a measured column."""


SCALES = ("3B", "7B", "14B", "27B")
# The paper's order of systems, then ours; an unknown system comes last.
SYSTEMS = systems.NAMES


def order(accelerator: str, scale: str, system: str) -> tuple[object, ...]:
    """Return a sort key that orders rows as the paper does."""
    by_scale = SCALES.index(scale) if scale in SCALES else len(SCALES)
    by_system = SYSTEMS.index(system) if system in SYSTEMS else len(SYSTEMS)
    return (accelerator, by_scale, scale, by_system, system)


def fixed(value: float | None, decimals: int) -> str:
    """Return a number with fixed decimals, or an empty text for None."""
    return "" if value is None else f"{value:.{decimals}f}"


def gigabytes(value: int | None) -> float | None:
    """Return bytes in GB of 1e9 bytes, the paper's unit; none of a CPU's device."""
    return value / 1e9 if value else None


STATUS_CELLS = {
    "oom": "OOM",
    "host_oom": HOST_OOM,
    "diverged": DIVERGED,
    "not_run": NOT_RUN,
}


def limit_cell(record: RunRecord | None) -> str | None:
    """Return the text of a run without a number, or None if it has one.

    Out of memory at batch 1 means that nothing fits; above it, that this batch does
    not, so the batch is part of the cell.
    """
    if record is None:
        return NOT_AVAILABLE
    cell = STATUS_CELLS.get(record.status)
    return f"OOM@{record.batch}" if cell == "OOM" and record.batch > 1 else cell


def measured_cell(record: RunRecord | None, value: float | None, decimals: int) -> str:
    """Return a measured cell: the limit that was reached, or the number."""
    limit = limit_cell(record)
    if limit is not None:
        return limit
    return NOT_AVAILABLE if value is None else fixed(value, decimals)


def measured_number(record: RunRecord | None, name: str) -> float | None:
    """Return a number of a run that kept its limits, or None.

    A run that went over a configured cap has numbers, and stands as ``host OOM``.
    """
    if record is None or record.status != "ok":
        return None
    value: float | None = getattr(record, name)
    return value


def to_csv(rows: Sequence[Contract], kind: type[Contract]) -> str:
    """Return rows of one kind as CSV text, header first.

    Args:
        rows: Rows of ``kind``; may be empty.
        kind: The row contract whose fields are the columns.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(kind.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump(mode="json") for row in rows)
    return buffer.getvalue()


def write_table(rows: Sequence[Contract], kind: type[Contract], path: Path) -> None:
    """Write a table atomically."""
    write_text(to_csv(rows, kind), path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a CSV file into one dictionary per row.

    Raises:
        InvalidInput: If the file is missing.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError as error:
        raise InvalidInput("path", str(path), "the file does not exist") from error


def read_table(kind: type[M], path: Path) -> list[M]:
    """Read a table that :func:`write_table` wrote, validated again.

    Raises:
        InvalidInput: If the file is missing or a cell breaks the row's contract.
    """
    try:
        return [kind.model_validate(row) for row in read_csv(path)]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        remedy = f"{first['msg']} (in {path})"
        raise InvalidInput(field, first.get("input"), remedy) from error
