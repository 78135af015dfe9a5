"""Exact match of a model over test rows, before and after training (paper, Table 4)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytrain.data.metamath import load_rows
from lazytrain.data.prompts import prompt_text
from lazytrain.data.rows import Row, read_rows
from lazytrain.data.split import rows_sha256, side_rows
from lazytrain.errors import InvalidInput
from lazytrain.evaluate.exact_match import (
    by_type,
    distinct_answers,
    fraction_correct,
    has_answer,
    is_number,
    judge,
    majority_baseline,
)
from lazytrain.evaluate.generate import generate
from lazytrain.evaluated import EvalRecord, Prediction
from lazytrain.records import Provenance, RunRecord, SplitManifest, read, sha256_text

log = logging.getLogger(__name__)
MARGIN_TOKENS = 16  # what an answer may be longer than the longest training answer


@dataclass(frozen=True)
class TestSet:
    """Rows to answer, and the training rows they are judged against.

    ``num_all`` counts the whole test side, of which ``rows`` may be a sample.
    """

    rows: list[Row]
    train: list[Row]
    num_all: int
    sha256: str


@dataclass(frozen=True)
class Subject:
    """What is evaluated, in the words of the run sheet."""

    system: str
    scale: str
    model: str
    stands_for: str
    accelerator: str

    @classmethod
    def of(cls, run: RunRecord | None, weights: Path) -> Subject:
        """Return a run's names, or those of a folder that no run here made."""
        if run is None:
            name = weights.resolve().name
            return cls("folder", name, name, name, "auto")
        return cls(run.system, run.scale, run.model, run.stands_for, run.accelerator)


def split_test_set(
    manifest: Path, rows: Path, limit: int = 0, seed: int = 0
) -> TestSet:
    """Return the test side of a split, or a seeded sample of ``limit`` rows of it.

    Rows that end in a call of a tool have no answer to match, and are not asked.

    Raises:
        InvalidInput: If manifest and rows do not belong together.
    """
    split = read(SplitManifest, manifest)
    everything = read_rows(rows)
    test = side_rows(everything, split.test)
    train = side_rows(everything, split.train)
    asked = [row for row in test if not row.calls]
    if len(asked) < len(test):
        told = (
            "%d of %d test rows end in a call of a tool, no answer: they are not asked"
        )
        log.warning(told, len(test) - len(asked), len(test))
    return TestSet(sample(asked, limit, seed), train, len(test), split.test.sha256)


def file_test_set(source: str, limit: int = 0, seed: int = 0) -> TestSet:
    """Return the rows of any file with questions and answers as a test set.

    An answer is marked at the end of a solution, or is a number by itself.

    Raises:
        InvalidInput: If the file cannot be read, or no row has an answer.
    """
    loaded = load_rows(source, needs_answer=False)
    rows = [row for row in loaded.rows if has_answer(row.response)]
    left_out = dict(loaded.skipped)
    if len(rows) < len(loaded.rows):
        left_out["no answer"] = len(loaded.rows) - len(rows)
    reasons = ", ".join(f"{why}: {count}" for why, count in left_out.items())
    if not rows:
        remedy = (
            f"no row can be used ({reasons}); a response must end in 'The answer is: "
            "X' or '#### X', or be a number by itself"
        )
        raise InvalidInput("data", source, remedy)
    if reasons:
        log.warning("%s: rows that are not asked: %s", source, reasons)
    return TestSet(sample(rows, limit, seed), [], len(rows), rows_sha256(rows))


def sample(rows: Sequence[Row], limit: int, seed: int) -> list[Row]:
    """Return ``limit`` rows (0: all) chosen by seed and row id, in their order."""
    if limit <= 0 or limit >= len(rows):
        return list(rows)
    chosen = sorted(rows, key=lambda row: sha256_text(f"{seed}:{row.row_id}"))[:limit]
    return sorted(chosen, key=lambda row: row.row_id)


def answer_budget(test: TestSet, tokenizer: Any, longest: int = 1024) -> int:
    """Return how many tokens an answer may take, by the longest known answer.

    A number by itself does not say how long its solution is: ``longest`` stands then.
    """
    known = [
        row.response for row in test.train or test.rows if not is_number(row.response)
    ]
    if not known:
        return longest
    texts = sorted(known, key=len)[-64:]
    tokens = [len(tokenizer(text)["input_ids"]) for text in texts]
    return min(longest, max(tokens) + MARGIN_TOKENS)


def predict(
    model: Any, tokenizer: Any, rows: Sequence[Row], max_new_tokens: int, batch: int
) -> list[Prediction]:
    """Let the model answer every row and judge what it writes."""
    prompts = [prompt_text(row, tokenizer) for row in rows]
    texts = generate(model, tokenizer, prompts, max_new_tokens, batch)
    return [judge(row, text) for row, text in zip(rows, texts, strict=True)]


def evaluation_record(
    test: TestSet,
    after: Sequence[Prediction],
    before: Sequence[Prediction],
    subject: Subject,
    max_new_tokens: int,
    provenance: Provenance,
) -> EvalRecord:
    """Put predictions and baselines into one record.

    Raises:
        InvalidInput: If there is no test row.
    """
    if not test.rows:
        raise InvalidInput("split", 0, "the test side has no rows")
    return EvalRecord(
        system=subject.system,
        scale=subject.scale,
        model=subject.model,
        stands_for=subject.stands_for,
        accelerator=subject.accelerator,
        device=provenance.device,
        num_rows=len(test.rows),
        num_test_rows=test.num_all,
        exact_match=fraction_correct(after),
        by_type=by_type(after),
        before=fraction_correct(before) if before else None,
        before_by_type=by_type(before),
        before_predictions=tuple(before),
        max_new_tokens=max_new_tokens,
        majority_baseline=majority_baseline(test.train, test.rows),
        distinct_answers=distinct_answers(test.rows),
        split_sha256=test.sha256,
        provenance=provenance,
        predictions=tuple(after),
    )


def record_without_model(
    run: RunRecord, split_sha256: str, provenance: Provenance
) -> EvalRecord:
    """Return the record of a run that ended without a model: no row was answered."""
    return EvalRecord(
        system=run.system,
        scale=run.scale,
        model=run.model,
        stands_for=run.stands_for,
        accelerator=run.accelerator,
        device=provenance.device,
        status=run.status,
        reason=run.reason,
        num_rows=0,
        exact_match=0.0,
        by_type={},
        majority_baseline=0.0,
        distinct_answers=0,
        split_sha256=split_sha256,
        provenance=provenance,
        predictions=(),
    )
