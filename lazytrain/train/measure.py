"""What a throughput is: tokens over seconds, after a warm-up, over complete batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lazytrain.models.flops import tflops
from lazytrain.records import StepRecord


@dataclass(frozen=True)
class Reading:
    """Throughput between two moments at which nothing was in flight."""

    num_steps: int
    seconds: float
    real_tokens: int
    padded_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second, padding not counted."""
        return self.real_tokens / self.seconds

    @property
    def padded_tokens_per_s(self) -> float:
        """Tokens per second as the device sees them."""
        return self.padded_tokens / self.seconds

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.num_steps

    def tflops(self, num_parameters: int) -> float:
        """Return 6 N tokens/s in TFLOP/s over padded tokens, N all parameters."""
        return tflops(num_parameters, self.padded_tokens_per_s)


def reading(steps: Sequence[StepRecord], seconds: float) -> Reading:
    """Return the reading of timed steps that took ``seconds`` together."""
    return Reading(
        num_steps=len(steps),
        seconds=seconds,
        real_tokens=sum(step.real_tokens for step in steps),
        padded_tokens=sum(step.padded_tokens for step in steps),
    )


def mean_breakdown_s(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Return mean seconds by cause over steps that took place."""
    taken = [step.breakdown_s for step in steps if not step.skipped]
    names = dict.fromkeys(name for laps in taken for name in laps)
    return {n: sum(laps.get(n, 0.0) for laps in taken) / len(taken) for n in names}


def nonfinite_at_end(steps: Sequence[StepRecord]) -> int:
    """Count the last steps in a row whose loss or gradient was not finite.

    A step without a label has neither: it is passed over.
    """
    count = 0
    for step in reversed(steps):
        if step.supervised_tokens == 0:
            continue
        if not step.skipped:
            break
        count += 1
    return count


@dataclass(frozen=True)
class Outcome:
    """What a loop leaves: every step, and the reading if any step was timed.

    ``diverged`` is the number of steps in a row without a finite loss and gradient
    that ended the run early; 0 if none did.
    """

    steps: list[StepRecord]
    timed: Reading | None
    timed_breakdown_s: dict[str, float] = field(default_factory=dict)
    eval_loss: float | None = None
    diverged: int = 0

    @property
    def skipped_steps(self) -> int:
        """Number of steps that changed nothing: non-finite, or without a label."""
        return sum(step.skipped for step in self.steps)

    @property
    def losses(self) -> list[float]:
        """Losses of the steps that took place."""
        return [step.loss for step in self.steps if not step.skipped]
