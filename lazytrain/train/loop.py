"""The training loop: one for every system, with no wait for the device inside.

Step t+1 is launched before step t's numbers are read, so that a device always has work.
The clock is read only when nothing is in flight: before the first timed step and after
the last, with the engine drained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lazytrain.config import Purpose
from lazytrain.data.batches import Batch
from lazytrain.errors import InvalidInput
from lazytrain.executor.protocol import Engine, PendingStep
from lazytrain.records import StepRecord
from lazytrain.train.measure import (
    Outcome,
    mean_breakdown_s,
    nonfinite_at_end,
    reading,
)
from lazytrain.train.schedule_lr import learning_rate

StepHook = Callable[[StepRecord], None]


@dataclass(frozen=True)
class Launched:
    """A step on its way, and what is known about it beforehand."""

    step: int
    pending: PendingStep
    batch: Batch
    learning_rate: float


def check_purpose(purpose: Purpose) -> None:
    """Refuse a warm-up that leaves no step to time.

    Raises:
        InvalidInput: If ``warmup_steps`` is not below ``num_steps``.
    """
    if purpose.warmup_steps >= purpose.num_steps:
        remedy = f"must be below num_steps = {purpose.num_steps}"
        raise InvalidInput("warmup_steps", purpose.warmup_steps, remedy)


def nonfinite_limit(purpose: Purpose) -> int:
    """Return how many steps in a row may not be finite before a run ends; 0: all.

    Over half of a short run says as much, but never one step alone, unless it is asked.
    """
    return min(purpose.max_nonfinite_steps, max(2, purpose.num_steps // 2 + 1))


class Loop:
    """Runs an engine over batches and hands each step's record to a hook.

    Args:
        engine: The system under test.
        purpose: Steps, warm-up and learning rate.
        on_step: Called once per step, in order, when its numbers are known.
        eval_batches: Held-out batches; the loss over them is reported every
            ``eval_every`` steps and at the end.
        first_step: Steps already taken by an earlier run that this one resumes.
        after_step: Called after each launched step with its number, counted from 1:
            the place to save a checkpoint.
        settle: Says after which steps ``after_step`` needs all results read and handed
            on; its time then counts for no step.
        earlier: Records of the steps before ``first_step``.
    """

    def __init__(
        self,
        engine: Engine,
        purpose: Purpose,
        on_step: StepHook,
        eval_batches: Sequence[Batch] = (),
        first_step: int = 0,
        after_step: Callable[[int], None] | None = None,
        settle: Callable[[int], bool] | None = None,
        earlier: Sequence[StepRecord] = (),
    ) -> None:
        check_purpose(purpose)
        self._engine = engine
        self._purpose = purpose
        self._on_step = on_step
        self._eval_batches = eval_batches
        self._first_step = first_step
        self._after_step = after_step
        self._settle = settle
        self._num_earlier = len(earlier)
        self._records = list(earlier)
        self._diverged = 0
        self._clock = time.perf_counter()

    def run(self, batches: Iterable[Batch]) -> Outcome:
        """Train for ``num_steps`` steps, or until the run has diverged.

        Raises:
            InvalidInput: If the batches end before the steps do.
        """
        source = iter(batches)
        warmup_end = self._first_step + self._purpose.warmup_steps
        warmup_end = min(warmup_end, self._purpose.num_steps)
        self._clock = time.perf_counter()
        self._stretch(source, range(self._first_step, warmup_end))
        self._engine.drain()
        start = time.perf_counter()
        paused_s = self._stretch(source, range(warmup_end, self._purpose.num_steps))
        self._engine.drain()
        seconds = time.perf_counter() - start - paused_s
        timed = self._records[self._num_earlier + self._purpose.warmup_steps :]
        return Outcome(
            steps=self._records,
            timed=reading(timed, seconds) if timed else None,
            timed_breakdown_s=mean_breakdown_s(timed),
            eval_loss=self._last_eval_loss(),
            diverged=self._diverged,
        )

    def _stretch(self, source: Iterator[Batch], steps: range) -> float:
        """Run some steps and read all their results; return seconds of evaluation."""
        before: Launched | None = None
        paused_s = 0.0
        for step in steps:
            if self._diverged:
                break
            current = self._launch(source, step)
            if before is not None:
                self._finish(before)
            before = current
            if self._is_eval_step(step + 1):
                paused_s += self._finish(before, with_evaluation=True)
                before = None
            is_settled = self._settle is not None and self._settle(step + 1)
            if is_settled and before is not None:
                self._finish(before)
                before = None
            if not self._diverged:
                paused_s += self._tell(step + 1, is_settled)
        if before is not None:
            self._finish(before)
        return paused_s

    def _tell(self, done: int, is_settled: bool) -> float:
        """Call ``after_step``; return the seconds that no step is charged with."""
        if self._after_step is None:
            return 0.0
        if not is_settled:
            self._after_step(done)
            return 0.0
        self._engine.drain()
        start = time.perf_counter()
        self._after_step(done)
        seconds = time.perf_counter() - start
        self._clock += seconds
        return seconds

    def _launch(self, source: Iterator[Batch], step: int) -> Launched:
        batch = next(source, None)
        if batch is None:
            remedy = f"the data end after {step} steps; give more rows or fewer steps"
            raise InvalidInput("num_steps", self._purpose.num_steps, remedy)
        rate = learning_rate(
            step,
            self._purpose.num_steps,
            self._purpose.learning_rate,
            self._purpose.schedule,
        )
        pending = self._engine.train_step(batch, rate)
        return Launched(step, pending, batch, rate)

    def _finish(self, launched: Launched, with_evaluation: bool = False) -> float:
        """Read a step's numbers and hand them on; return seconds of evaluation."""
        result = launched.pending.result()
        # A system that waits inside its step was done before the next was launched.
        now = getattr(launched.pending, "finished_at", time.perf_counter())
        eval_loss, paused_s = None, 0.0
        if with_evaluation:
            self._engine.drain()
            start = time.perf_counter()
            eval_loss = evaluate(self._engine, self._eval_batches)
            paused_s = time.perf_counter() - start
        # JSON has no NaN; a step that saw one says so by `skipped`.
        is_finite = math.isfinite(result.loss)
        record = StepRecord(
            step=launched.step + 1,
            loss=result.loss if is_finite else 0.0,
            grad_norm=_finite(result.grad_norm),
            learning_rate=launched.learning_rate,
            step_s=now - self._clock,
            real_tokens=launched.batch.real_tokens,
            padded_tokens=launched.batch.padded_tokens,
            supervised_tokens=launched.batch.num_supervised,
            skipped=result.skipped or not is_finite,
            eval_loss=eval_loss,
            breakdown_s=result.breakdown_s,
        )
        self._clock = max(now, self._clock) + paused_s
        self._records.append(record)
        self._on_step(record)
        in_row = nonfinite_at_end(self._records)
        if 0 < nonfinite_limit(self._purpose) <= in_row:
            self._diverged = in_row
        return paused_s

    def _is_eval_step(self, done: int) -> bool:
        if not self._eval_batches:
            return False
        every = self._purpose.eval_every
        return done == self._purpose.num_steps or bool(every and done % every == 0)

    def _last_eval_loss(self) -> float | None:
        losses = [r.eval_loss for r in self._records if r.eval_loss is not None]
        return losses[-1] if losses else None


def evaluate(engine: Engine, batches: Sequence[Batch]) -> float | None:
    """Return the mean loss per supervised token over held-out batches.

    None where the batches hold no label or the loss is not finite.
    """
    totals = [engine.evaluate_loss(batch) for batch in batches]
    count = sum(count for _, count in totals)
    total = math.fsum(loss for loss, _ in totals)
    return _finite(total / count) if count else None


def _finite(value: float | None) -> float | None:
    """Return a value that JSON can hold, or None."""
    return value if value is not None and math.isfinite(value) else None
