"""What an evaluation leaves: answers and how they were judged, typed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lazytrain.records import Contract, Provenance


class EvaluationPoint(Contract):
    """One line of ``evaluations.jsonl``: exact match at one moment of a training.

    ``epoch`` is the share of the training rows taken so far; ``predictions`` names the
    file of all answers, beside the lines.
    """

    step: int
    epoch: float
    rows: Literal["sample", "full"]
    num_rows: int
    exact_match: float
    by_type: dict[str, tuple[int, int]] = Field(description="correct, total")
    seconds: float
    predictions: str


class Prediction(Contract):
    """One evaluated row: what the model wrote and how it was judged."""

    row_id: int
    type: str
    expected: str
    answer: str | None
    text: str
    correct: bool


class EvalRecord(Contract):
    """Exact match over a test side, per type, before and after training."""

    system: str
    scale: str
    model: str
    stands_for: str
    accelerator: str
    device: str
    status: Literal["ok", "oom", "host_oom", "diverged", "not_run"] = Field(
        default="ok", description="of the training; only a model of `ok` is evaluated"
    )
    reason: str | None = None
    num_rows: int
    exact_match: float
    by_type: dict[str, tuple[int, int]] = Field(description="correct, total")
    before: float | None = Field(
        default=None, description="exact match of the initial weights, same rows"
    )
    before_by_type: dict[str, tuple[int, int]] = Field(default_factory=dict)
    before_predictions: tuple[Prediction, ...] = ()
    num_test_rows: int = Field(default=0, description="rows of the whole test side")
    max_new_tokens: int = 0
    majority_baseline: float
    distinct_answers: int
    split_sha256: str
    provenance: Provenance
    predictions: tuple[Prediction, ...]
    complete: Literal[True] = True
