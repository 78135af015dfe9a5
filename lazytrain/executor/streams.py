"""Copy streams, compute stream and the tickets that order them.

Compute and copies meet only through tickets. Waiting on a device event that was not
yet recorded is a no-op in CUDA, so a ticket first waits on the host until the recording
call has returned, and only then makes the waiting stream depend on the event. A ticket
belongs to one use in one step and is never recorded twice.

Without a GPU the same calls run: a copy is done when the call returns, and a ticket is
then a host event. Threads still race for real, so ordering faults show there as well.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lazytrain.errors import LazyTrainError

_POLL_S = 0.2


class Health:
    """Remembers the first failure of any worker, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Record a failure; the first one wins."""
        if self._error is None:
            self._error = error

    def check(self) -> None:
        """Raise what a worker raised.

        Raises:
            LazyTrainError: The worker's own, if it is one a user can act on.
            RuntimeError: With the worker's error as its cause, otherwise.
        """
        if isinstance(self._error, LazyTrainError):
            raise self._error
        if self._error is not None:
            raise RuntimeError("a streaming worker failed") from self._error


class Ticket:
    """One point in one stream, recorded once.

    ``name`` says what was done, such as ``step 3 upload layer.7``.
    """

    def __init__(self, name: str, health: Health) -> None:
        self.name = name
        self._health = health
        self._issued = threading.Event()
        self._event: torch.cuda.Event | None = None

    @property
    def is_issued(self) -> bool:
        """Whether the recording call has returned."""
        return self._issued.is_set()

    def record(self, stream: torch.cuda.Stream | None, *, timed: bool = False) -> None:
        """Record this point in a stream; None records on the host alone."""
        assert not self._issued.is_set(), f"ticket recorded twice: {self.name}"
        if stream is not None:
            self._event = torch.cuda.Event(enable_timing=timed)
            self._event.record(stream)
        self._issued.set()

    def wait_issued(self) -> None:
        """Wait on the host until the recording call has returned."""
        while not self._issued.wait(_POLL_S):
            self._health.check()

    def wait_on(self, stream: torch.cuda.Stream | None) -> None:
        """Make a stream wait for this point; the host waits only for its issue."""
        self.wait_issued()
        if self._event is not None and stream is not None:
            stream.wait_event(self._event)

    def wait_done(self) -> None:
        """Wait on the host until the device has passed this point."""
        self.wait_issued()
        if self._event is not None:
            self._event.synchronize()

    @property
    def event(self) -> torch.cuda.Event | None:
        """The device event, for timing; None on the host."""
        return self._event


class Streams:
    """Compute, upload and download streams of one device, made once.

    Args:
        device: A CUDA device, or the CPU.
        delay: Called before every copy with its name, on the copy's stream; tests use
            it to slow copies.
    """

    def __init__(
        self, device: torch.device, delay: Callable[[str], None] | None = None
    ) -> None:
        self.device = device
        self.health = Health()
        self.delay = delay
        cuda = device.type == "cuda"
        self.compute = torch.cuda.Stream(device) if cuda else None
        self.h2d = torch.cuda.Stream(device) if cuda else None
        self.d2h = torch.cuda.Stream(device) if cuda else None
        # Boundaries have streams of their own: weights and gradients are issued by
        # other threads and must not queue behind them.
        self.fetch = torch.cuda.Stream(device) if cuda else None
        self.spill = torch.cuda.Stream(device) if cuda else None
        # Gradients that an update asks for must not queue behind work of the next step.
        self.consume = torch.cuda.Stream(device) if cuda else None

    def ticket(self, name: str) -> Ticket:
        """Return a fresh ticket."""
        return Ticket(name, self.health)

    @contextlib.contextmanager
    def on(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Launch on a stream inside the block."""
        if stream is None:
            yield
        else:
            with torch.cuda.stream(stream):
                yield

    def copy(
        self, target: Tensor, source: Tensor, link: torch.cuda.Stream | None, name: str
    ) -> None:
        """Copy on a link's stream; returns at once on CUDA."""
        with self.on(link):
            if self.delay is not None:
                self.delay(name)
            target.copy_(source, non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the whole device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def host_delay(seconds: float) -> Callable[[str], None]:
    """Return a delay hook that sleeps on the host before each copy."""
    return lambda _name: time.sleep(seconds)
