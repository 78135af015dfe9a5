"""Rows for training to an exact-match accuracy, from any source (paper, Section 4.1).

MetaMathQA's fields are ``query``, ``response``, ``original_question`` and ``type``;
GSM8K's are ``question`` and ``answer``, whose last line is ``#### number``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from lazytrain.config import SyntheticSettings
from lazytrain.data.answers import extract_answer
from lazytrain.data.files import Record, read_records
from lazytrain.data.rows import Row
from lazytrain.data.synthetic import generate
from lazytrain.errors import InvalidInput

__all__ = ["LoadedRows", "Row", "load_rows", "normalise_records"]

SYNTHETIC: Final = "synthetic"
_SHAPES: Final = (("query", "response"), ("question", "answer"))


@dataclass(frozen=True)
class LoadedRows:
    """Usable rows, numbered from 0, and how many were left out for which reason."""

    rows: list[Row]
    skipped: dict[str, int] = field(default_factory=dict)


def load_rows(source: str, synthetic: SyntheticSettings | None = None) -> LoadedRows:
    """Load rows from the generator, a local file or folder, or a hub id.

    Raises:
        InvalidInput: If the source cannot be read, lacks the fields, or leaves no row.
    """
    if source == SYNTHETIC:
        settings = synthetic or SyntheticSettings()
        return LoadedRows(generate(settings.num_questions, settings.seed))
    return normalise_records(read_records(source), source)


def normalise_records(records: Iterable[Record], source: str) -> LoadedRows:
    """Turn raw records into rows; a record without a usable answer is counted.

    Raises:
        InvalidInput: If no record has the fields, or none is usable.
    """
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    columns: set[str] = set()
    for record in records:
        columns |= record.keys()
        row = _row(record, len(rows))
        if isinstance(row, Row):
            rows.append(row)
        else:
            skipped[row] += 1
    if not rows:
        raise _nothing_usable(source, columns, skipped)
    return LoadedRows(rows, dict(sorted(skipped.items())))


def _row(record: Record, row_id: int) -> Row | str:
    """Return the row, or the reason why the record cannot be used."""
    for asked, answered in _SHAPES:
        if asked in record and answered in record:
            break
    else:
        return "missing field"
    query, response = _text(record[asked]), _text(record[answered])
    if not query:
        return "empty question"
    if extract_answer(response) is None:
        return "no answer"
    return Row(
        row_id=row_id,
        query=query,
        response=response,
        original_question=_text(record.get("original_question")) or query,
        type=_text(record.get("type")) or "question",
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _nothing_usable(
    source: str, columns: set[str], skipped: Counter[str]
) -> InvalidInput:
    """Explain an empty data set: no record at all, wrong fields, or no answers."""
    if not skipped:
        return InvalidInput("data", source, "the data set is empty")
    if set(skipped) == {"missing field"}:
        found = ", ".join(sorted(columns)) or "none"
        remedy = (
            f"its rows need query and response, or question and answer; found: {found}"
        )
        return InvalidInput("data", source, remedy)
    reasons = ", ".join(f"{reason}: {count}" for reason, count in skipped.items())
    remedy = (
        "no row can be used; a response must end in 'The answer is: X' or '#### X' "
        f"({reasons})"
    )
    return InvalidInput("data", source, remedy)
