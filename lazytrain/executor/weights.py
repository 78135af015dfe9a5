"""Weights on their way: host buffers, device slots and the thread that uploads.

A layer's first upload of a step waits for the layer's own update of the step before;
the thread that launches compute never does: it waits only until the copy it needs has
been issued, while the device still works on what was launched earlier.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.executor.itinerary import Stop
from lazytrain.executor.layout import Layout
from lazytrain.executor.streams import Streams, Ticket


@dataclass
class Trip:
    """The uploads of one step: its stops and their tickets.

    Attributes:
        stops: The step's uses in order.
        gates: Per part, the update that must precede its first upload.
        before: End of the step before; slots may hold its weights until then.
        arrived: Per position with an upload, the end of the copy.
        done: Per position, the end of the compute that used the weights.
    """

    stops: tuple[Stop, ...]
    gates: Mapping[str, Ticket]
    before: Ticket | None
    arrived: dict[int, Ticket]
    done: list[Ticket]


class WeightStreamer:
    """Device slots for streamed layers, own buffers for resident parts.

    Args:
        streams: Streams of the device.
        host: Flat host buffer per part.
        layouts: Layout per part.
        resident: Parts that keep a device buffer of their own.
        slots: Number of ring slots, each as large as the largest streamed part.
        chunk_bytes: Size of one copy.
        poison: Fill a slot with NaN before each upload (tests).
    """

    def __init__(
        self,
        streams: Streams,
        host: Mapping[str, Tensor],
        layouts: Mapping[str, Layout],
        resident: frozenset[str],
        *,
        slots: int,
        chunk_bytes: int,
        poison: bool = False,
    ) -> None:
        self._streams = streams
        self._host = host
        self._layouts = layouts
        self._poison = poison
        some = next(iter(host.values()))
        self._chunk = max(1, chunk_bytes // some.element_size())
        streamed = [layouts[name].numel for name in host if name not in resident]
        size = max(streamed, default=0)

        def empty(numel: int) -> Tensor:
            return torch.zeros(numel, dtype=some.dtype, device=streams.device)

        self._slots = [empty(size) for _ in range(slots if size else 0)]
        self._own = {name: empty(layouts[name].numel) for name in sorted(resident)}
        self._where: dict[str, Tensor] = {}
        self._jobs: queue.SimpleQueue[Trip | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)
        self._thread.start()

    @property
    def device_bytes(self) -> int:
        """Bytes of all slots and own buffers."""
        buffers = [*self._slots, *self._own.values()]
        return sum(b.numel() * b.element_size() for b in buffers)

    def slot_buffers(self) -> Sequence[Tensor]:
        """Return every device buffer that can hold weights."""
        return [*self._slots, *self._own.values()]

    def begin(
        self,
        step: str,
        stops: tuple[Stop, ...],
        gates: Mapping[str, Ticket],
        before: Ticket | None,
    ) -> Trip:
        """Start a step's uploads in the background."""
        ticket = self._streams.ticket
        trip = Trip(
            stops,
            gates,
            before,
            {s.position: ticket(f"{step} upload {s.part}") for s in stops if s.upload},
            [ticket(f"{step} {s.action} {s.part}") for s in stops],
        )
        self._where.clear()
        self._jobs.put(trip)
        return trip

    def arrive(self, trip: Trip, position: int) -> Tensor:
        """Make compute wait for a stop's weights and return their flat buffer."""
        stop = trip.stops[position]
        if stop.upload:
            trip.arrived[position].wait_on(self._streams.compute)
        buffer = self._own[stop.part] if stop.slot < 0 else self._slots[stop.slot]
        for part in [p for p, held in self._where.items() if held is buffer]:
            del self._where[part]
        self._where[stop.part] = buffer
        return buffer

    def finished(self, trip: Trip, position: int) -> None:
        """Record that the compute of a stop has been launched."""
        trip.done[position].record(self._streams.compute)

    def where(self, part: str) -> Tensor:
        """Return the buffer that holds a part now.

        Raises:
            AssertionError: If the part is not on the device at this point.
        """
        assert part in self._where, f"{part} is not on the device now"
        return self._where[part]

    def close(self) -> None:
        """Stop the uploader."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (trip := self._jobs.get()) is not None:
            try:
                for stop in trip.stops:
                    if stop.upload:
                        self._upload(trip, stop)
            except BaseException as error:
                self._streams.health.fail(error)
                return

    def _upload(self, trip: Trip, stop: Stop) -> None:
        """Copy one part to its slot, in pieces, once slot and weights are ready."""
        gate = trip.gates.get(stop.part)
        if stop.first and gate is not None:
            gate.wait_done()
        free = trip.done[stop.after] if stop.after >= 0 else trip.before
        link = self._streams.h2d
        if free is not None:
            free.wait_on(link)
        target = self._own[stop.part] if stop.slot < 0 else self._slots[stop.slot]
        source = self._host[stop.part]
        if self._poison:
            with self._streams.on(link):
                target.fill_(torch.nan)
        for start in range(0, source.numel(), self._chunk):
            piece = slice(start, min(start + self._chunk, source.numel()))
            self._streams.copy(target[piece], source[piece], link, stop.part)
        trip.arrived[stop.position].record(link)
