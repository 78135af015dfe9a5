"""Optimizer updates under the next forward, part by part, on a thread of their own.

When the last gradient of a step is on its way, one small vector of square-sums decides
the clip factor; then parts update in plan order, each behind its own gradient, and each
opens the gate of its own upload. The numbers are those of the serial order: clip, then
AdamW on every part. A non-finite norm skips the step before anything is written.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from lazytrain.executor.protocol import StepResult
from lazytrain.executor.streams import Streams, Ticket
from lazytrain.optim.clip import clip_factor


class GradientSource(Protocol):
    """Brings gradients that wait on the device to the host."""

    def send(self, part: str, ready: Ticket) -> Ticket:
        """Start a part's way to the host; the ticket is its arrival."""
        ...


class PartUpdater(Protocol):
    """Updates the host weights of one part from its host gradient."""

    def update(
        self, part: str, *, step: int, learning_rate: float, scale: float
    ) -> None:
        """Apply one clipped AdamW step to a part."""
        ...

    def prepare(self) -> None:
        """Start bringing what the next update needs first."""
        ...


@dataclass
class UpdateJob:
    """One step's update.

    Attributes:
        learning_rate: Of this step.
        squares: Host vector of square-sums.
        loss_sum: Host fp64 scalar, summed over supervised tokens.
        num_supervised: Denominator of the loss; 0 skips the step.
        numbers: When ``squares`` and ``loss_sum`` are on the host.
        gradients: Per part, the arrival of its gradient, or its being ready.
        gates: Per part, recorded once its weights are new.
        breakdown: Filled in by the timeline, if there is one.
        result: The step's outcome.
    """

    learning_rate: float
    squares: Tensor
    loss_sum: Tensor
    num_supervised: int
    numbers: Ticket
    gradients: Mapping[str, Ticket]
    gates: Mapping[str, Ticket]
    breakdown: dict[str, float] = field(default_factory=dict)
    result: Future[StepResult] = field(default_factory=Future)


class UpdatePump:
    """The thread that updates.

    Args:
        updater: Applies a part's update.
        feed: Brings the gradients that wait on the device.
        order: Parts in the order they update.
        max_grad_norm: Clipping threshold.
        streams: For the health record.
        applied_steps: Updates applied before, for a resumed run.
    """

    def __init__(
        self,
        updater: PartUpdater,
        feed: GradientSource,
        order: Sequence[str],
        max_grad_norm: float,
        streams: Streams,
        applied_steps: int = 0,
    ) -> None:
        self._updater = updater
        self._feed = feed
        self._order = tuple(order)
        self._max_grad_norm = max_grad_norm
        self._streams = streams
        self.applied_steps = applied_steps
        self._jobs: queue.SimpleQueue[UpdateJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)
        self._thread.start()

    def submit(self, job: UpdateJob) -> None:
        """Queue one step's update."""
        self._jobs.put(job)

    def close(self) -> None:
        """Finish what is queued and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._apply(job)
            except BaseException as error:
                self._streams.health.fail(error)
                if not job.result.done():
                    job.result.set_exception(error)
                return

    def _apply(self, job: UpdateJob) -> None:
        self._updater.prepare()
        job.numbers.wait_done()
        clip = clip_factor(job.squares.tolist(), self._max_grad_norm)
        loss_sum = float(job.loss_sum)
        loss = loss_sum / job.num_supervised if job.num_supervised else 0.0
        skipped = not clip.is_finite or job.num_supervised == 0
        norm = clip.norm if clip.is_finite else None
        result = StepResult(loss, norm, skipped, job.breakdown)
        if skipped:
            for part in self._order:
                job.gates[part].record(None)
        else:
            self._update_parts(job, clip.factor)
        job.result.set_result(result)

    def _update_parts(self, job: UpdateJob, factor: float) -> None:
        self.applied_steps += 1
        arrivals: dict[str, Ticket] = {}
        for number, part in enumerate(self._order):
            for coming in self._order[number : number + 2]:
                if coming not in arrivals:
                    ready = job.gradients[coming]
                    arrivals[coming] = self._feed.send(coming, ready)
            arrivals[part].wait_done()
            self._updater.update(
                part,
                step=self.applied_steps,
                learning_rate=job.learning_rate,
                scale=factor,
            )
            job.gates[part].record(None)
