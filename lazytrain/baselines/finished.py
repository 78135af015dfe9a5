"""A step that is over when ``train_step`` returns, and where its time went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lazytrain.executor.protocol import StepResult


@dataclass(frozen=True)
class FinishedStep:
    """A pending step with nothing left to wait for, and when it was over."""

    step: StepResult
    finished_at: float = field(default_factory=time.perf_counter)

    def result(self) -> StepResult:
        """Return the step's numbers."""
        return self.step


class Stopwatch:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Book the time since the last lap under a name."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
