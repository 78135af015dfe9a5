"""A seeded train/test split by stable hashes, and its manifest (paper, Section 4.1).

``grouped`` keeps all rows of one original question, and all rows of equal query, on one
side. ``paper`` places each row by itself, as the paper did, so that test rows may share
their original question with training rows; the manifest counts them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lazytrain.data.rows import Row, content_sha256
from lazytrain.errors import InvalidInput
from lazytrain.records import LeakRecord, Side, SplitManifest, sha256_text

Mode = Literal["grouped", "paper"]


@dataclass(frozen=True)
class SplitSettings:
    """How rows are divided."""

    mode: Mode = "grouped"
    seed: int = 0
    train_fraction: float = 0.7


def split_rows(
    rows: Sequence[Row],
    settings: SplitSettings,
    *,
    source: str,
    skipped: dict[str, int] | None = None,
) -> SplitManifest:
    """Divide rows into train and test.

    A row's side depends on the rows' contents and the seed, not on their order.

    Raises:
        InvalidInput: If there are fewer than two groups to divide.
    """
    groups = _groups(rows, settings.mode)
    if len(groups) < 2:
        remedy = (
            f"{len(rows)} usable row(s) in {len(groups)} group(s) cannot be divided; "
            "a split needs two rows of different original questions"
        )
        raise InvalidInput("data", source, remedy)
    train = _train_ids(groups, settings, len(rows))
    test = [row.row_id for row in rows if row.row_id not in train]
    sides = [sorted(train), sorted(test)]
    return SplitManifest(
        source=source,
        mode=settings.mode,
        seed=settings.seed,
        train_fraction=settings.train_fraction,
        num_rows=len(rows),
        skipped=skipped or {},
        train=_side(rows, sides[0]),
        test=_side(rows, sides[1]),
        shared_questions=count_shared(rows, sides[0], sides[1]),
    )


def given_split(
    train: Sequence[Row],
    test: Sequence[Row],
    *,
    source: str,
    seed: int = 0,
    skipped: dict[str, int] | None = None,
) -> tuple[list[Row], SplitManifest]:
    """Return all rows, numbered anew, and the manifest of a split that is given.

    Args:
        train: Rows to train on.
        test: Rows of a data set of their own.
        source: The data sets' names.
        seed: For the record: nothing is drawn.
        skipped: Rows left out, by reason.

    Raises:
        InvalidInput: If a side is empty.
    """
    for name, side in (("data", train), ("test_data", test)):
        if not side:
            raise InvalidInput(name, source, "has no usable row")
    rows = [
        row.model_copy(update={"row_id": place})
        for place, row in enumerate([*train, *test])
    ]
    sides = [list(range(len(train))), list(range(len(train), len(rows)))]
    manifest = SplitManifest(
        source=source,
        mode="given",
        seed=seed,
        train_fraction=len(train) / len(rows),
        num_rows=len(rows),
        skipped=skipped or {},
        train=_side(rows, sides[0]),
        test=_side(rows, sides[1]),
        shared_questions=count_shared(rows, sides[0], sides[1]),
    )
    return rows, manifest


def side_rows(rows: Sequence[Row], side: Side) -> list[Row]:
    """Return the rows of one side, checked against the side's hash.

    Raises:
        InvalidInput: If the rows file is not the one that the manifest was made from.
    """
    if side.row_ids and side.row_ids[-1] >= len(rows):
        remedy = f"the rows file has only {len(rows)} rows; write it with the manifest"
        raise InvalidInput("row_ids", side.row_ids[-1], remedy)
    chosen = [rows[row_id] for row_id in side.row_ids]
    if rows_sha256(chosen) != side.sha256:
        remedy = "the rows file is not the one the split was made from; run data split"
        raise InvalidInput("sha256", side.sha256, remedy)
    return chosen


def rows_sha256(rows: Iterable[Row]) -> str:
    """Hash a set of rows, whatever their order."""
    return sha256_text("\n".join(sorted(content_sha256(row) for row in rows)))


def count_shared(rows: Sequence[Row], train: Iterable[int], test: Iterable[int]) -> int:
    """Count test rows whose original question some training row has as well."""
    known = {question_key(rows[row_id].original_question) for row_id in train}
    return sum(question_key(rows[n].original_question) in known for n in test)


def measure_leak(
    rows: Sequence[Row], source: str, seed: int = 0, train_fraction: float = 0.7
) -> LeakRecord:
    """Split rows in both modes and count what test shares with train in each.

    Raises:
        InvalidInput: If the rows cannot be divided.
    """
    shared: dict[Mode, tuple[int, int]] = {}
    modes: tuple[Mode, ...] = ("paper", "grouped")
    for mode in modes:
        how = SplitSettings(mode, seed, train_fraction)
        manifest = split_rows(rows, how, source=source)
        shared[mode] = (manifest.shared_questions, len(manifest.test.row_ids))
    return LeakRecord(
        source=source,
        num_rows=len(rows),
        num_questions=len({question_key(row.original_question) for row in rows}),
        train_fraction=train_fraction,
        seed=seed,
        paper=shared["paper"],
        grouped=shared["grouped"],
    )


def question_key(question: str) -> str:
    """Return a question with case and spacing made equal."""
    return " ".join(question.casefold().split())


def _side(rows: Sequence[Row], row_ids: Sequence[int]) -> Side:
    digest = rows_sha256(rows[row_id] for row_id in row_ids)
    return Side(row_ids=tuple(row_ids), sha256=digest)


def _groups(rows: Sequence[Row], mode: Mode) -> dict[str, list[int]]:
    """Map a key that does not depend on the rows' order to the row ids it holds."""
    groups: dict[str, list[int]] = defaultdict(list)
    if mode == "grouped":
        roots = _roots(rows)
        for row in rows:
            groups[roots[question_key(row.original_question)]].append(row.row_id)
        return groups
    copies: Counter[str] = Counter()
    for row in rows:
        digest = content_sha256(row)
        groups[f"{digest}:{copies[digest]}"].append(row.row_id)
        copies[digest] += 1
    return groups


def _roots(rows: Sequence[Row]) -> dict[str, str]:
    """Join original questions that share a query; the least name stands for all."""
    parent: dict[str, str] = {}

    def find(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for row in rows:
        one = find(question_key(row.original_question))
        other = find(question_key(row.asked))
        parent[max(one, other)] = min(one, other)
    return {key: find(key) for key in list(parent)}


def _train_ids(
    groups: dict[str, list[int]], settings: SplitSettings, num_rows: int
) -> set[int]:
    """Take groups in the order of their hashes until the train side is full."""
    target = settings.train_fraction * num_rows
    ordered = sorted(groups, key=lambda key: sha256_text(f"{settings.seed}:{key}"))
    train: set[int] = set(groups[ordered[0]])
    for key in ordered[1:-1]:
        size = len(groups[key])
        if len(train) + size / 2 > target:
            break
        train.update(groups[key])
    return train
