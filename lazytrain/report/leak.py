"""What a random split gives away: test rows whose question was trained on.

MetaMathQA rewrites each question several times. The paper divides rows at random
(Section 4.1), so most test rows have a rewriting of their question in train; the
grouped split of this project keeps all rows of a question on one side.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazytrain.records import Contract, LeakRecord
from lazytrain.report.frames import fixed


class LeakRow(Contract):
    """One kind of split, and what its test side shares with its training side."""

    source: str
    num_rows: str
    num_questions: str
    train_percent: str
    split: str
    test_rows: str
    shared_rows: str
    shared_percent: str


def leak_table(records: Sequence[LeakRecord]) -> list[LeakRow]:
    """Return two rows for each data set: the paper's split and the grouped one."""
    return [
        _leak_row(record, split, *counts)
        for record in records
        for split, counts in (("paper", record.paper), ("grouped", record.grouped))
    ]


def _leak_row(record: LeakRecord, split: str, shared: int, total: int) -> LeakRow:
    return LeakRow(
        source=record.source,
        num_rows=str(record.num_rows),
        num_questions=str(record.num_questions),
        train_percent=fixed(100 * record.train_fraction, 1),
        split=split,
        test_rows=str(total),
        shared_rows=str(shared),
        shared_percent=fixed(100 * shared / total, 2),
    )
