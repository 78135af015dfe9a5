"""Gradients that stay in HBM until their update reads them.

``drain: whole`` sends every gradient down as soon as it is summed, so the host holds
one for every parameter. ``drain: as-consumed`` keeps the rounded gradient in HBM and
sends it down only when its own update is next, through two host buffers: two bytes of
host memory per parameter less, for two bytes of HBM more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from lazytrain.executor.gradients import GradientSums
from lazytrain.executor.streams import Streams, Ticket


class GradientFeed(Mapping[str, Tensor]):
    """Where the updating thread finds each part's gradient on the host.

    Parts are sent in update order, one ahead of the update. All calls of a step come
    from the updating thread.

    Args:
        streams: For the copies; they have a stream of their own, because what waits on
            the others may wait for this very update.
        sums: Holds the gradients that wait in HBM.
        host: Host gradient of every part that is drained as a whole.
        slots: Host buffers that the others pass through; none if there are no others.
    """

    def __init__(
        self,
        streams: Streams,
        sums: GradientSums,
        host: Mapping[str, Tensor],
        slots: Sequence[Tensor],
    ) -> None:
        self._streams = streams
        self._sums = sums
        self._host = dict(host)
        self._slots = list(slots)
        self._next = 0

    def send(self, part: str, ready: Ticket) -> Ticket:
        """Start a part's way to the host; the ticket is its arrival.

        The slot's last reader was the update before the one in progress: it has ended.
        """
        source = self._sums.waiting.get(part)
        if source is None:
            return ready
        target = self._slots[self._next][: source.numel()]
        self._next = (self._next + 1) % len(self._slots)
        link = self._streams.consume
        ready.wait_on(link)
        self._streams.copy(target, source, link, f"consume {part}")
        self._host[part] = target
        arrival = self._streams.ticket(f"consumed {part}")
        arrival.record(link)
        return arrival

    def __getitem__(self, part: str) -> Tensor:
        """Return a part's gradient, once its arrival has been waited for."""
        return self._host[part]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the parts that have a host gradient now."""
        return iter(self._host)

    def __len__(self) -> int:
        """Return how many parts have a host gradient now."""
        return len(self._host)
