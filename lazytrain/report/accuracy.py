"""Exact match by scale and system: Table 4 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazytrain.config import RunRow
from lazytrain.evaluated import EvalRecord
from lazytrain.records import Contract
from lazytrain.report.frames import (
    NOT_AVAILABLE,
    STATUS_CELLS,
    Measured,
    Number,
    Printed,
    fixed,
    order,
)
from lazytrain.report.printed import printed_table4

SYSTEMS = ("zero3-offload", "zero-infinity", "megatrain", "lazytrain")


class AccuracyRow(Contract):
    """One cell of Table 4, with what it is to be judged by."""

    accelerator: str
    device: str
    scale: str
    system: str
    model: str
    stands_for: str
    num_rows: Number
    exact_match_percent: Measured
    exact_match_before_percent: Measured
    majority_answer_percent: Measured
    distinct_answers: Number
    paper_exact_match_percent: Printed


def _percent(record: EvalRecord | None, value: float | None) -> str:
    """Return a fraction in percent, or why there is none."""
    if record is not None and record.status != "ok":
        return STATUS_CELLS[record.status]
    return NOT_AVAILABLE if value is None else fixed(100 * value, 2)


def _count(record: EvalRecord | None, value: int) -> str:
    """Return a count, or nothing where no row was answered."""
    return str(value) if record is not None and record.status == "ok" else ""


def table4(
    rows: Sequence[RunRow], records: Sequence[EvalRecord], paper: Path
) -> list[AccuracyRow]:
    """Return exact match by scale and system (Table 4).

    Every scale that the sheet trains to an accuracy shows all four of the paper's
    systems, and others that the sheet adds; a system without a run is ``n/a``.
    """
    found = {(r.accelerator, r.scale, r.system): r for r in records}
    printed = printed_table4(paper)
    scales = {(row.accelerator, row.scale): row for row in rows if row.table4}
    paper_systems = {(acc, scale, name) for acc, scale in scales for name in SYSTEMS}
    added = {(row.accelerator, row.scale, row.system) for row in rows if row.table4}
    keys = sorted(paper_systems | added, key=lambda key: order(*key))
    return [
        _accuracy_row(scales[key[:2]], key[2], found.get(key), printed) for key in keys
    ]


def _accuracy_row(
    row: RunRow,
    system: str,
    record: EvalRecord | None,
    printed: dict[tuple[str, str], str],
) -> AccuracyRow:
    """Return one row of Table 4; a stand-in has no printed value beside it."""
    is_real = row.model == row.stands_for
    return AccuracyRow(
        **row.model_dump(include={"accelerator", "scale", "model", "stands_for"}),
        system=system,
        device=record.device if record else NOT_AVAILABLE,
        num_rows=_count(record, record.num_rows if record else 0),
        exact_match_percent=_percent(record, record.exact_match if record else None),
        exact_match_before_percent=_percent(record, record.before if record else None),
        majority_answer_percent=_percent(
            record, record.majority_baseline if record else None
        ),
        distinct_answers=_count(record, record.distinct_answers if record else 0),
        paper_exact_match_percent=printed.get((row.scale, system), "")
        if is_real
        else "",
    )
