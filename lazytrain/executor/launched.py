"""A launched step: its work is under way, and reading it waits for the device."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from lazytrain.executor.protocol import StepResult
from lazytrain.executor.streams import Streams
from lazytrain.executor.timeline import Timeline
from lazytrain.models.decoder import EMBEDDING

# How the simulator calls what the timeline calls by cause.
_WINDOWS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "replay",
    "loss": "loss",
}


@dataclass
class LaunchedStep:
    """A step whose work has been launched; reading it waits for the device."""

    pending: Future[StepResult]
    timeline: Timeline | None = None
    streams: Streams | None = None
    finished_at: float = field(default_factory=time.perf_counter)
    _result: StepResult | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Note when the step's numbers are known; the update may still run then."""
        self.pending.add_done_callback(self._finished)

    def _finished(self, _pending: Future[StepResult]) -> None:
        self.finished_at = time.perf_counter()

    def result(self) -> StepResult:
        """Return the step's numbers."""
        if self._result is None:
            while not self.pending.done() and self.streams is not None:
                try:
                    self.pending.result(timeout=0.2)
                except TimeoutError:
                    self.streams.health.check()
            got = self.pending.result()
            spent = self.timeline.by_cause() if self.timeline else {}
            self._result = StepResult(got.loss, got.grad_norm, got.skipped, spent)
        return self._result

    def window_s(self) -> dict[str, float]:
        """Return measured compute seconds per window, named as the simulator does."""
        windows: dict[str, float] = {}
        for cause, subject, seconds in self.timeline.spans() if self.timeline else ():
            if cause not in _WINDOWS:
                continue
            name = _WINDOWS[cause]
            kind, _, index = subject.partition(".")
            if kind == "layer":
                name = f"{name} {index}"
            elif subject == EMBEDDING:
                name = EMBEDDING if cause == "forward" else f"{EMBEDDING} backward"
            windows[name] = windows.get(name, 0.0) + seconds
        return windows
