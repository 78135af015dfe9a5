"""Records as evidence: read, and refused where a table made of them would mislead.

A contract says what one file may hold. What must hold between the values of a record,
between records, and between a record and the plan that lies beside it is asked here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from lazytrain import systems
from lazytrain.config import RunRow
from lazytrain.errors import InvalidInput
from lazytrain.evaluated import EvalRecord
from lazytrain.records import (
    HardwareProfile,
    LayerProfile,
    RunRecord,
    read,
    sha256_file,
)
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.no_plan import NoPlan, read_unless_none
from lazytrain.schedule.plan import Plan

Key = tuple[str, str, str]
P = TypeVar("P", HardwareProfile, LayerProfile)
POSITIVE: Final = (
    "num_parameters",
    "step_s",
    "tokens_per_s",
    "padded_tokens_per_s",
    "tflops",
)
NAMED: Final = ("master", "optimizer_state")
EXACT: Final = 1e-6  # relative: values of one record were rounded nowhere
AGAIN: Final = "make the record again instead of changing it"


def key_of(record: RunRecord | EvalRecord | RunRow) -> Key:
    """Return what names a row of a table."""
    return record.accelerator, record.scale, record.system


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Read run records, in the given order.

    Raises:
        InvalidInput: If a file is no record, contradicts itself or its plan, or if two
            of them are of the same row and purpose.
    """
    places = list(paths)
    records = [read(RunRecord, path) for path in places]
    refuse_doubles([(*key_of(r), r.purpose) for r in records], places)
    for record, path in zip(records, places, strict=True):
        _check_place(record, path)
        _check_run(record, path)
    return records


def read_evaluations(paths: Iterable[Path]) -> list[EvalRecord]:
    """Read evaluation records, in the given order.

    Raises:
        InvalidInput: If a file is no record, its answers are not those that it counts,
            or if two are of the same row.
    """
    places = list(paths)
    records = [read(EvalRecord, path) for path in places]
    for record, path in zip(records, places, strict=True):
        _check_system(record, path)
        _check_answers(record, path)
    refuse_doubles([key_of(record) for record in records], places)
    return records


def read_profiles(kind: type[P], paths: Sequence[Path]) -> list[P]:
    """Read profiles of machines or of layers, in the given order.

    Raises:
        InvalidInput: If a file is none, or two are of the same machine and scale.
    """
    profiles = [read(kind, path) for path in paths]
    keys = [
        (p.accelerator, p.scale) if isinstance(p, LayerProfile) else (p.accelerator,)
        for p in profiles
    ]
    refuse_doubles(keys, paths)
    return profiles


def refuse_doubles(keys: Sequence[Hashable], paths: Sequence[Path]) -> None:
    """Refuse two files of one key: a table has one row for it, and would hide one.

    Raises:
        InvalidInput: With the key and both files.
    """
    seen: dict[Hashable, Path] = {}
    for key, path in zip(keys, paths, strict=True):
        if key in seen:
            remedy = f"is recorded twice, in {seen[key]} and in {path}: keep one"
            raise InvalidInput("records", key, remedy)
        seen[key] = path


def refuse_other_rows(records: Iterable[RunRecord], rows: Iterable[RunRow]) -> None:
    """Refuse a record of another model or length than the sheet's row names.

    The batch may differ: a search for the largest one ends at its own.

    Raises:
        InvalidInput: With the field and both values.
    """
    listed = {key_of(row): row for row in rows}
    for record in records:
        row = listed.get(key_of(record))
        for field in ("model", "stands_for", "seq_len") if row is not None else ():
            value, wanted = getattr(record, field), getattr(row, field)
            if value != wanted:
                where = f"the sheet's row {'/'.join(key_of(record))} has {wanted!r}"
                raise InvalidInput(field, value, f"{where}: run that row again")


def unlisted(records: Iterable[RunRecord], rows: Iterable[RunRow]) -> list[str]:
    """Return the recorded rows that the sheet does not have, so that no table does."""
    listed = {key_of(row) for row in rows}
    found = {key_of(record) for record in records} - listed
    return ["/".join(key) for key in sorted(found)]


def _check_system(record: RunRecord | EvalRecord, path: Path) -> None:
    if record.system not in systems.NAMES:
        names = ", ".join(systems.NAMES)
        remedy = f"unknown system: choose one of {names} (in {path})"
        raise InvalidInput("system", record.system, remedy)


def _check_run(record: RunRecord, path: Path) -> None:
    """Refuse a record whose values cannot all be true."""
    _check_system(record, path)
    _check_plan(record, path)
    if record.status != "ok":
        if not record.reason:
            remedy = f"a run that is {record.status} says why (in {path}); {AGAIN}"
            raise InvalidInput("reason", record.reason, remedy)
        return
    for name in (*POSITIVE, *NAMED):
        value = getattr(record, name)
        if not value or (name in POSITIVE and value < 0):
            kind = "a positive number" if name in POSITIVE else "a name"
            remedy = f"a run that is ok has {kind} here (in {path}); {AGAIN}"
            raise InvalidInput(name, value, remedy)
    _check_rates(record, path)


def _check_rates(record: RunRecord, path: Path) -> None:
    """Refuse rates that do not follow from one another."""
    padded = record.padded_tokens_per_s or 0.0
    real, step_s = record.tokens_per_s or 0.0, record.step_s or 0.0
    _same(
        ("tflops", record.tflops, 6 * record.num_parameters * padded / 1e12),
        "6 * num_parameters * padded_tokens_per_s / 1e12",
        path,
    )
    if real > padded * (1 + EXACT):
        remedy = f"is over padded_tokens_per_s = {padded} (in {path}); {AGAIN}"
        raise InvalidInput("tokens_per_s", real, remedy)
    if record.purpose == "throughput":  # every row of such a run is full
        _same(
            ("padded_tokens_per_s", padded, record.batch * record.seq_len / step_s),
            "batch * seq_len / step_s",
            path,
        )


def _same(values: tuple[str, float | None, float], rule: str, path: Path) -> None:
    """Refuse a field that is not what a rule makes of the others."""
    field, value, expected = values
    if value is None or not math.isclose(value, expected, rel_tol=EXACT):
        remedy = f"is not {rule} = {expected:.6g} (in {path}); {AGAIN}"
        raise InvalidInput(field, value, remedy)


def _check_answers(record: EvalRecord, path: Path) -> None:
    """Refuse an exact match that is not the share of its own correct answers."""
    if record.status != "ok" or not record.num_rows:
        return
    correct = sum(right for right, _ in record.by_type.values())
    _same(
        ("exact_match", record.exact_match, correct / record.num_rows),
        "the correct rows of by_type / num_rows",
        path,
    )
    judged = sum(answer.correct for answer in record.predictions)
    if record.predictions and judged != correct:
        remedy = f"predictions hold {judged} correct answers (in {path}); {AGAIN}"
        raise InvalidInput("by_type", correct, remedy)


def _check_place(record: RunRecord, path: Path) -> None:
    """Refuse a record in the folder of another row: its plan would be another's."""
    if len(path.parts) >= 5 and path.parts[-5] == "runs":
        row, place = "/".join(key_of(record)), "/".join(path.parts[-4:-1])
        if row != place:
            remedy = f"is the record of {row}: move it there, or run {place} again"
            raise InvalidInput("path", str(path), remedy)


def beside(path: Path, folder: str) -> Path | None:
    """Return the place of a recorded row's file in another folder, if there is one.

    ``M/runs/A/S/Y/record.json`` has its plan in ``M/schedules/A/S/Y.json`` and its
    problem in ``M/instances/A/S/Y.json``.
    """
    if len(path.parts) < 5 or path.parts[-5] != "runs":
        return None
    accelerator, scale, system = path.parts[-4:-1]
    home = path.parents[4] / folder
    return home / accelerator / scale / f"{system}.json" if home.is_dir() else None


def _check_plan(record: RunRecord, path: Path) -> None:
    """Refuse a record of another plan than the one that is kept beside it."""
    made_from = record.provenance.made_from.get("plan")
    place = beside(path, "schedules")
    if made_from is None or place is None:
        return
    plan = read_unless_none(Plan, place)
    if made_from != sha256_file(place):
        remedy = f"is not the hash of {place} (in {path}); {AGAIN}"
        raise InvalidInput("made_from.plan", made_from, remedy)
    if isinstance(plan, NoPlan):
        return
    # A run that ended at a memory limit before its first step has no plan's hash.
    is_known = record.plan_sha256 is not None or record.status == "ok"
    if is_known and record.plan_sha256 != plan.sha256:
        remedy = f"{place} is the plan {plan.sha256} (in {path}); {AGAIN}"
        raise InvalidInput("plan_sha256", record.plan_sha256, remedy)
    problem = beside(path, "instances")
    if problem is not None and read(Instance, problem).sha256 != plan.instance_sha256:
        remedy = f"is not the hash of {problem}: keep the problem that {place} solves"
        raise InvalidInput("instance_sha256", plan.instance_sha256, remedy)
