"""Exact match while a model trains: before, every part of an epoch, after (Figure 6).

The run's own weights answer, in its own dtype, between two steps; no step is charged
with the time. ``evaluations.jsonl`` holds one line per evaluation, ``predictions/`` all
answers, and ``eval.json`` the record of a whole test side, as ``lazytrain evaluate``
writes it.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from lazytrain.data.answers import extract_answer
from lazytrain.data.batches import Position
from lazytrain.data.rows import Row
from lazytrain.errors import is_disk_full
from lazytrain.evaluate.evaluation import (
    Subject,
    TestSet,
    answer_budget,
    evaluation_record,
    predict,
    sample,
)
from lazytrain.evaluate.exact_match import by_type, fraction_correct
from lazytrain.evaluate.live import live_model
from lazytrain.evaluated import EvaluationPoint, Prediction
from lazytrain.executor.protocol import Engine, Peaks
from lazytrain.profile.hardware import (
    device_for,
    dtype_of,
    gpu_cap_bytes,
    settings_for,
)
from lazytrain.profile.memory import gpu_context_bytes
from lazytrain.provenance import collect
from lazytrain.records import read_lines, sha256_file, write, write_lines
from lazytrain.train.request import Data, RunRequest
from lazytrain.train.source import Source

log = logging.getLogger(__name__)
LINES: Final = "evaluations.jsonl"
ANSWERS: Final = "predictions"
RECORD: Final = "eval.json"


@dataclass
class Evaluator:
    """Answers held-out rows with the weights of a run, at the moments it is set to.

    Attributes:
        request: The run.
        engine: What trains.
        source: Its model's configuration and tokenizer.
        data: Its rows and its stream of batches, read for its position.
        points: What was found so far.
        peak_bytes: Most device memory that the training took before an evaluation.
    """

    request: RunRequest
    engine: Engine
    source: Source
    data: Data
    points: list[EvaluationPoint] = field(default_factory=list)
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        """Choose the rows; without a final answer in any of them, answer none."""
        self._settings = self.request.settings.exact_match
        self._test: TestSet | None = None
        self._due = (0, False)
        self._marks = 0
        self._budget = 0
        if self._settings.is_wanted:
            self._test = self._test_set()

    def _test_set(self) -> TestSet | None:
        rows = [row for row in self.data.test_rows if extract_answer(row.response)]
        if not rows:
            log.warning("no exact match: no test row marks a final answer")
            return None
        purpose, seed = self.request.settings, self.request.config.seed
        test = TestSet(
            rows=sample(rows, purpose.test_rows, seed),
            train=list(self.data.train_rows),
            num_all=len(self.data.test_rows),
            sha256=self.data.manifest.test.sha256,
        )
        self._budget = self._settings.max_new_tokens or answer_budget(
            test, self.source.tokenizer
        )
        return test

    def begin(self, first_step: int) -> None:
        """Answer with the initial weights, or take up a resumed run's lines."""
        out = self.request.out
        if first_step == 0:
            (out / LINES).unlink(missing_ok=True)
            shutil.rmtree(out / ANSWERS, ignore_errors=True)
        elif (out / LINES).is_file():
            known = read_lines(EvaluationPoint, out / LINES)
            self.points = [point for point in known if point.step <= first_step]
        self._marks = self._passed()
        if first_step == 0:
            self._answer(0, self._settings.before)

    def is_due(self, step: int) -> bool:
        """Say whether a sample is answered after ``step``; ask once per step."""
        every = self._settings.every_epochs
        if self._test is None or every == 0:
            return False
        if self._due[0] != step:
            passed = self._passed()
            is_last = step == self.request.settings.num_steps
            is_covered = is_last and self._settings.after != "none"
            self._due = (step, passed > self._marks and not is_covered)
            self._marks = passed
        return self._due[1]

    def after_step(self, step: int) -> None:
        """Answer the sample if it is due; a full disk costs answers, not the run."""
        if not self.is_due(step):
            return
        try:
            self._answer(step, "sample")
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.error("no exact match at step %d: %s", step, error)

    def finish(self) -> None:
        """Answer with the trained weights; the whole test side becomes a record."""
        after = self._settings.after
        self._answer(self.request.settings.num_steps, after)
        if after == "full" and self._test is not None:
            self._write_record(self._test)

    def peaks(self) -> Peaks:
        """Return the engine's peaks, without what evaluations took on the device."""
        found = self.engine.peaks()
        return Peaks(max(found.gpu_bytes, self.peak_bytes), found.host_bytes)

    def _passed(self) -> int:
        """Count the marks that the training's share of its rows has passed."""
        every = self._settings.every_epochs
        # A rounding error must not move a mark behind the row that reaches it.
        return math.floor(self._epoch() / every + 1e-9) if every else 0

    def _epoch(self) -> float:
        return epochs_taken(self.data.train.position, len(self.data.train_rows))

    def _rows(self, which: str) -> list[Row]:
        if self._test is None or which == "none":
            return []
        if which == "full":
            return self._test.rows
        seed = self.request.config.seed
        return sample(self._test.rows, self._settings.rows, seed)

    def _answer(self, step: int, which: Literal["none", "sample", "full"]) -> None:
        """Answer rows, judge the answers and write them; nothing for ``none``."""
        rows = self._rows(which)
        if which == "none" or not rows:
            return
        start = time.monotonic()
        self.engine.drain()
        found = self._predictions(rows)
        file = f"{ANSWERS}/step-{step:06d}-{which}.jsonl"
        write_lines(found, self.request.out / file)
        point = EvaluationPoint(
            step=step,
            epoch=self._epoch(),
            rows=which,
            num_rows=len(found),
            exact_match=fraction_correct(found),
            by_type=by_type(found),
            seconds=time.monotonic() - start,
            predictions=file,
        )
        # A run resumed at its end answers once more.
        others = (p for p in self.points if (p.step, p.rows) != (step, which))
        self.points = [*others, point]
        write_lines(self.points, self.request.out / LINES)
        log.info("step %d: exact match %.2f %%", step, 100 * point.exact_match)

    def _predictions(self, rows: Sequence[Row]) -> list[Prediction]:
        """Let the engine's weights answer; the device is left as it was."""
        row, config = self.request.row, self.request.config
        device = device_for(row.accelerator)
        dtype = dtype_of(settings_for(config, row.accelerator).executor.dtype)
        self.peak_bytes = self.peaks().gpu_bytes
        weights = dict(self.engine.named_weights())
        room = self._room_bytes(device)
        model: Any = live_model(self.source.config, weights, device, dtype, room)
        del weights
        batch = self._settings.batch
        found = predict(model, self.source.tokenizer, rows, self._budget, batch)
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        return found

    def _room_bytes(self, device: torch.device) -> int | None:
        """Return how much of the device's cap the training leaves; None for a CPU."""
        if device.type != "cuda":
            return None
        cap = gpu_cap_bytes(self.request.config, self.request.row.accelerator, device)
        taken = gpu_context_bytes(device) + torch.cuda.memory_allocated(device)
        return max(0, cap - int(taken))

    def _write_record(self, test: TestSet) -> None:
        """Write ``eval.json`` of the whole test side, before beside after."""
        out = self.request.out
        answers = {
            point.step: read_lines(Prediction, out / point.predictions)
            for point in self.points
            if point.num_rows == len(test.rows)
        }
        last = self.request.settings.num_steps
        if last not in answers:
            return
        row = self.request.row
        subject = Subject(
            row.system, row.scale, row.model, row.stands_for, row.accelerator
        )
        made_from = {"split": sha256_file(self.request.split)}
        provenance = collect(row.accelerator, made_from)
        before = answers.get(0, [])
        record = evaluation_record(
            test, answers[last], before, subject, self._budget, provenance
        )
        write(record, out / RECORD)


def epochs_taken(position: Position, num_rows: int) -> float:
    """Return how many passes over the rows a stream's batches have taken."""
    taken = position.taken - len(position.held)
    return position.epoch + taken / num_rows if num_rows else 0.0
