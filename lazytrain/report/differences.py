"""Where measured runs and the paper's printed rows differ: a table of ``ARTIFACT.md``.

Measured and printed figures stand side by side in columns of their own, with their
ratio; a run without a printed counterpart is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazytrain.records import RunRecord
from lazytrain.report.frames import fixed, limit_cell, measured_number, order
from lazytrain.report.markdown import table
from lazytrain.report.parameters import num_parameters
from lazytrain.report.printed import Printed, hardware_of, printed_table3
from lazytrain.report.tables import by_run

BASELINE = "megatrain"
HEADER = (
    "accelerator",
    "model",
    "system",
    "batch",
    "the paper's batch",
    "TFLOPS",
    "the paper's, with our N",
    "ratio",
    "times MegaTrain",
    "the paper's",
)
NONE = "No recorded run has a printed counterpart yet."


def differences(records: Sequence[RunRecord], paper: Path) -> str:
    """Return the table, or one sentence where there is nothing to compare.

    The paper's TFLOPS are its printed tokens per second times 6 N with all parameters,
    because its smaller rows count a nominal N.
    """
    printed = printed_table3(paper)
    found = by_run(records)
    rows = []
    for key in sorted(found, key=lambda item: order(*item)):
        record = found[key]
        other = printed.get((hardware_of(key[0]), key[1], key[2]))
        if other is None or record.model != record.stands_for:
            continue
        base = printed.get((hardware_of(key[0]), key[1], BASELINE))
        rows.append(_row(record, found.get((*key[:2], BASELINE)), other, base))
    return table(HEADER, rows) if rows else NONE


def _row(
    record: RunRecord,
    base: RunRecord | None,
    other: Printed,
    other_base: Printed | None,
) -> tuple[str, ...]:
    """Return one run's cells."""
    theirs = _their_tflops(record, other)
    return (
        f"{record.accelerator} ({other.hardware} in the paper)",
        record.model,
        record.system,
        str(record.batch),
        other.batch,
        limit_cell(record) or fixed(record.tflops, 1),
        fixed(theirs, 1),
        _ratio(measured_number(record, "tflops"), theirs),
        _ratio(*(measured_number(run, "tokens_per_s") for run in (record, base))),
        _ratio(_number(other.tokens_per_s), _number(other_base.tokens_per_s))
        if other_base
        else "",
    )


def _their_tflops(record: RunRecord, printed: Printed) -> float | None:
    """Return 6 N times the printed tokens per second, in TFLOPS."""
    rate = _number(printed.tokens_per_s)
    return None if rate is None else 6 * num_parameters(record.model) * rate / 1e12


def _number(text: str) -> float | None:
    """Return a printed number, or None for an empty cell."""
    return float(text) if text else None


def _ratio(top: float | None, bottom: float | None) -> str:
    """Return a ratio with two decimals, or nothing where a side is missing."""
    return fixed(top / bottom, 2) if top and bottom else ""
