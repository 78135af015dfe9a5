"""Where a step's time goes on the compute stream, by cause.

Marks are device events; the time from one mark to the next belongs to the first one's
cause. Nothing is recorded while the timeline is off, and nothing waits while it is on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from lazytrain.executor.streams import Streams

# What compute can stand still for; named in every breakdown, zero or not.
EXPOSED = ("exposed_optimizer", "exposed_h2d", "exposed_boundary")


@dataclass(frozen=True)
class Mark:
    """The beginning of a stretch of the compute stream."""

    cause: str
    subject: str
    event: torch.cuda.Event | None
    host_s: float


class Timeline:
    """Marks of one step.

    Args:
        streams: Streams of the device.
        is_on: Whether marks are recorded.
    """

    def __init__(self, streams: Streams, *, is_on: bool) -> None:
        self._streams = streams
        self._is_on = is_on
        self._marks: list[Mark] = []

    def enter(self, cause: str, subject: str = "") -> None:
        """Say what the compute stream does from here on."""
        if not self._is_on:
            return
        event = None
        if self._streams.compute is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record(self._streams.compute)
        self._marks.append(Mark(cause, subject, event, time.perf_counter()))

    def spans(self) -> list[tuple[str, str, float]]:
        """Return (cause, subject, seconds) per stretch; waits for the device."""
        if not self._marks:
            return []
        last = self._marks[-1].event
        if last is not None:
            last.synchronize()
        spans = []
        for mark, after in zip(self._marks, self._marks[1:], strict=False):
            if mark.event is not None and after.event is not None:
                seconds = mark.event.elapsed_time(after.event) / 1e3
            else:
                seconds = after.host_s - mark.host_s
            spans.append((mark.cause, mark.subject, seconds))
        return spans

    def by_cause(self) -> dict[str, float]:
        """Return seconds by cause; waits for the device."""
        totals = dict.fromkeys(EXPOSED, 0.0) if self._marks else {}
        for cause, _, seconds in self.spans():
            totals[cause] = totals.get(cause, 0.0) + seconds
        return totals
