"""Layer boundaries between forward and backward: kept, sent away, fetched, released.

A boundary is ``[rows, T, H]`` hidden states of one wave. GPU homes own a device buffer;
every other home passes through a pool of wave-sized buffers that were allocated once,
so nothing that crosses streams ever belongs to the allocator. A pool buffer is handed
out again only behind the ticket of its last reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lazytrain.executor.spill import HostHome, NvmeHome
from lazytrain.executor.streams import Streams, Ticket
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.staging import staging_buffers


@dataclass
class _Buffer:
    """One pool buffer and the tickets that must pass before it is written again."""

    data: Tensor
    readers: list[Ticket] = field(default_factory=list)


@dataclass(frozen=True)
class WaveShape:
    """How a wave is cut: ``rows`` sequences, ``micro_batch`` of them at a time."""

    rows: int
    micro_batch: int
    tokens: int
    hidden: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches in the wave."""
        return self.rows // self.micro_batch

    @property
    def numel(self) -> int:
        """Elements of one boundary."""
        return self.rows * self.tokens * self.hidden


class BoundaryStore:
    """All boundaries of the wave in flight.

    Args:
        plan: Homes, blocks and read-ahead.
        streams: Streams of the device.
        largest: Shape of the largest wave.
        dtype: Dtype of hidden states.
        away: Home of each boundary that leaves the device.
        poison: Fill a buffer with NaN when it is released (tests).
    """

    def __init__(
        self,
        plan: Plan,
        streams: Streams,
        largest: WaveShape,
        dtype: torch.dtype,
        away: Mapping[int, HostHome | NvmeHome],
        *,
        poison: bool = False,
    ) -> None:
        self._plan = plan
        self._streams = streams
        self._away = away
        self._poison = poison
        self._wave = largest

        def buffer() -> Tensor:
            return torch.zeros(largest.numel, dtype=dtype, device=streams.device)

        self._kept = {
            i: _Buffer(buffer())
            for i, home in enumerate(plan.homes)
            if home == Home.GPU
        }
        self._free = deque(_Buffer(buffer()) for _ in range(staging_buffers(plan)))
        self._live: dict[int, _Buffer] = {}
        self._fetched: dict[int, Ticket] = {}

    @property
    def device_bytes(self) -> int:
        """Bytes of all device buffers."""
        buffers = [*self._kept.values(), *self._free, *self._live.values()]
        return sum(b.data.numel() * b.data.element_size() for b in set_of(buffers))

    def begin(self, wave: WaveShape) -> None:
        """Start a wave; everything of the wave before must have been released."""
        assert not self._live, f"boundaries still held: {sorted(self._live)}"
        assert wave.numel <= self._wave.numel, "wave larger than the plan's"
        self._shape = wave

    def open(self, index: int) -> None:
        """Give boundary ``index`` a device buffer to be written by compute."""
        if index in self._live:
            return
        self._live[index] = self._take(index, self._streams.compute)

    def _take(self, index: int, writer: torch.cuda.Stream | None) -> _Buffer:
        """Return a buffer that ``writer`` may write now."""
        if index in self._kept:
            buffer = self._kept[index]
        else:
            assert self._free, f"no staging buffer left for boundary {index}"
            buffer = self._free.popleft()
        for ticket in buffer.readers:
            ticket.wait_on(writer)
        buffer.readers.clear()
        return buffer

    def flat(self, index: int) -> Tensor:
        """Return the whole device buffer of a live boundary."""
        return self._live[index].data

    def rows(self, index: int, micro_batch: int) -> Tensor:
        """Return one micro-batch of a live boundary, ``[b, T, H]``."""
        shape = self._shape
        whole = self._live[index].data[: shape.numel]
        whole = whole.view(shape.rows, shape.tokens, shape.hidden)
        first = micro_batch * shape.micro_batch
        return whole[first : first + shape.micro_batch]

    def produced(self, index: int) -> None:
        """Start to send a finished boundary to its home, if that is elsewhere."""
        if index not in self._away:
            return
        ticket = self._streams.ticket(f"boundary {index} produced")
        ticket.record(self._streams.compute)
        source = self._live[index].data[: self._shape.numel]
        sent = self._away[index].send(source, ticket)
        self._live[index].readers.append(sent)

    def passed(self, index: int) -> None:
        """Release a boundary that forward is done with, unless it stays here."""
        if index not in self._kept:
            self.release(index)

    def release(self, index: int) -> None:
        """Give the device buffer of a boundary back."""
        buffer = self._live.pop(index)
        read = self._streams.ticket(f"boundary {index} read")
        read.record(self._streams.compute)
        if self._poison and not buffer.readers:
            with self._streams.on(self._streams.compute):
                buffer.data.fill_(torch.nan)
        # Fetches write on another stream, so the last compute must be waited for too.
        if index not in self._kept:
            buffer.readers.append(read)
            self._free.append(buffer)

    def fetch_ahead(self, index: int) -> None:
        """Start to bring a boundary back to the device, if it is away."""
        if index in self._live or index in self._fetched:
            return
        if index in self._kept:
            self._live[index] = self._kept[index]
            return
        link = self._streams.fetch
        buffer = self._take(index, link)
        self._live[index] = buffer
        target = buffer.data[: self._shape.numel]
        self._fetched[index] = self._away[index].bring(target)

    def arrive(self, index: int) -> None:
        """Make compute wait until a boundary is on the device."""
        self.fetch_ahead(index)
        ticket = self._fetched.pop(index, None)
        if ticket is not None:
            ticket.wait_on(self._streams.compute)


def set_of(buffers: list[_Buffer]) -> list[_Buffer]:
    """Return each buffer once."""
    return list({id(buffer): buffer for buffer in buffers}.values())
