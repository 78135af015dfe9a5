"""Homes away from the device: pinned host memory, or a file on NVMe.

Sending starts behind the ticket of whoever produced the boundary and returns a ticket
for the moment the device buffer may be reused. Bringing returns a ticket for the moment
the bytes are on the device. Host threads wait, the launching thread does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from torch import Tensor

from lazytrain.executor.streams import Streams, Ticket


class Pending(Protocol):
    """An unfinished file operation."""

    def wait(self) -> None:
        """Wait for it; raises what went wrong."""
        ...


class Store(Protocol):
    """What an NVMe home needs of a tier."""

    def put(self, key: str, data: Tensor) -> Pending:
        """Write a tensor under a key."""
        ...

    def fetch(self, key: str, out: Tensor) -> Pending:
        """Read a key into a tensor."""
        ...


class HostHome:
    """A boundary's place in pinned host memory.

    Args:
        name: Name used in tickets.
        host: Flat pinned buffer of one wave.
        streams: Streams of the device.
    """

    def __init__(self, name: str, host: Tensor, streams: Streams) -> None:
        self._name = name
        self._host = host
        self._streams = streams
        self._sent: Ticket | None = None

    def send(self, source: Tensor, produced: Ticket) -> Ticket:
        """Copy down; the returned ticket frees the device buffer."""
        link = self._streams.spill
        produced.wait_on(link)
        self._streams.copy(self._host[: source.numel()], source, link, self._name)
        self._sent = self._streams.ticket(f"{self._name} sent")
        self._sent.record(link)
        return self._sent

    def bring(self, target: Tensor) -> Ticket:
        """Copy up; the returned ticket says the bytes are there."""
        assert self._sent is not None, f"{self._name} was never sent"
        link = self._streams.fetch
        self._sent.wait_on(link)
        self._streams.copy(target, self._host[: target.numel()], link, self._name)
        ticket = self._streams.ticket(f"{self._name} fetched")
        ticket.record(link)
        return ticket


class BounceBuffers:
    """Pinned buffers through which file homes pass, lent one at a time.

    Args:
        buffers: Pinned flat buffers of one wave each.
        streams: For the health check while waiting.
    """

    def __init__(self, buffers: list[Tensor], streams: Streams) -> None:
        self._free = list(buffers)
        self._streams = streams
        self._changed = threading.Condition()

    def take(self) -> Tensor:
        """Return a free buffer, waiting for one."""
        with self._changed:
            while not self._free:
                self._changed.wait(0.2)
                self._streams.health.check()
            return self._free.pop()

    def give(self, buffer: Tensor) -> None:
        """Give a buffer back."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()


class NvmeHome:
    """A boundary's place in a file.

    Bytes that come back different stop the step with the boundary's number; they are
    not recomputed. The step's uploads are one fixed row, made before it begins, with
    no visit to spare for layers that the plan did not mean to run again, and a disk
    that lied once may lie in what was not checked: what helps is another disk and the
    last checkpoint.

    Args:
        name: Key of the boundary in the tier, also used in tickets.
        tier: Where the bytes go.
        bounce: Pinned buffers between device and file.
        streams: Streams of the device.
        workers: Threads that wait for devices and files.
    """

    def __init__(
        self,
        name: str,
        tier: Store,
        bounce: BounceBuffers,
        streams: Streams,
        workers: ThreadPoolExecutor,
    ) -> None:
        self._name = name
        self._tier = tier
        self._bounce = bounce
        self._streams = streams
        self._workers = workers
        self._written: Ticket | None = None

    def send(self, source: Tensor, produced: Ticket) -> Ticket:
        """Write to the file; the returned ticket frees the device buffer."""
        sent = self._streams.ticket(f"{self._name} sent")
        written = self._streams.ticket(f"{self._name} written")
        self._written = written

        def job() -> None:
            bounce = self._bounce.take()
            try:
                part = bounce[: source.numel()]
                link = self._streams.spill
                produced.wait_on(link)
                self._streams.copy(part, source, link, self._name)
                sent.record(link)
                sent.wait_done()
                self._tier.put(self._name, part).wait()
            finally:
                self._bounce.give(bounce)
            written.record(None)

        self._submit(job)
        return sent

    def bring(self, target: Tensor) -> Ticket:
        """Read from the file; the returned ticket says the bytes are there."""
        assert self._written is not None, f"{self._name} was never sent"
        written = self._written
        there = self._streams.ticket(f"{self._name} fetched")

        def job() -> None:
            written.wait_issued()
            bounce = self._bounce.take()
            try:
                part = bounce[: target.numel()]
                self._tier.fetch(self._name, part).wait()
                link = self._streams.fetch
                self._streams.copy(target, part, link, self._name)
                there.record(link)
                there.wait_done()
            finally:
                self._bounce.give(bounce)

        self._submit(job)
        return there

    def _submit(self, job: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                job()
            except BaseException as error:
                self._streams.health.fail(error)

        self._workers.submit(guarded)
