"""Transfer windows: what each link can carry, and which bytes go in which window.

A boundary written from window ``a`` on may use windows ``a..L-1`` (paper, Section 3.4).
The sets are nested suffixes, so a first-in first-out queue reaches the least exposed
bytes, ``max_k(demand from k on - slack from k on)``, and those wait in the last window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home

Link = Literal["d2h", "h2d", "nvme_write", "nvme_read"]
LINKS: Final[tuple[Link, ...]] = ("d2h", "h2d", "nvme_write", "nvme_read")
WRITES: Final[tuple[Link, ...]] = ("d2h", "nvme_write")

Pieces = dict[int, float]
Placement = dict[Link, dict[int, Pieces]]
Carried = Mapping[tuple[Link, Home], Sequence[float]]


@dataclass(frozen=True)
class Channel:
    """One link over the windows: seconds, rate [bytes/s], mandatory bytes."""

    rate: float
    window_s: tuple[float, ...]
    mandatory_bytes: tuple[int, ...]

    @property
    def slack_bytes(self) -> list[float]:
        """Bytes each window has left beside its mandatory traffic (S_w)."""
        return [
            max(0.0, self.rate * seconds - needed)
            for seconds, needed in zip(self.window_s, self.mandatory_bytes, strict=True)
        ]


def channel(instance: Instance, link: Link) -> Channel:
    """Return a link's windows: writes over the forward, reads over the backward."""
    nothing = (0,) * instance.layers
    mandatory: Mapping[Link, tuple[int, ...]] = {
        "d2h": instance.mandatory_d2h_bytes,
        "h2d": instance.mandatory_h2d_bytes,
    }
    windows = instance.window_write_s if link in WRITES else instance.window_read_s
    rate: float = getattr(instance.bandwidth, link)
    return Channel(rate, windows, mandatory.get(link, nothing))


def uses(home: Home, link: Link) -> bool:
    """Whether a boundary with this home moves over this link."""
    if link in ("d2h", "h2d"):
        return home in (Home.CPU, Home.NVME)
    return home == Home.NVME


def successors(homes: Sequence[Home]) -> dict[int, int]:
    """Return the end of the block that each materialized boundary starts."""
    return dict(pairwise(i for i, home in enumerate(homes) if home != Home.RECOMPUTE))


def first_window(
    instance: Instance, homes: Sequence[Home], link: Link
) -> dict[int, int]:
    """Return, per boundary on the link, the first window it may use (a_i)."""
    moved = [i for i, home in enumerate(homes) if uses(home, link)]
    deadline = instance.options.read_deadline
    if link in WRITES or deadline == "paper":
        return {i: i for i in moved}
    if deadline == "layer":
        return {i: i + 1 for i in moved}
    following = successors(homes)
    return {i: following.get(i, instance.layers) for i in moved}


def is_admissible(instance: Instance, homes: Sequence[Home]) -> bool:
    """Whether every moved boundary has at least one window on each of its links."""
    return all(
        start < instance.layers
        for link in LINKS
        for start in first_window(instance, homes, link).values()
    )


def place(
    instance: Instance, homes: Sequence[Home], carried: Carried | None = None
) -> Placement:
    """Give every moved byte a window, first in first out.

    Args:
        instance: The planning problem.
        homes: A home per boundary 0..L, admissible.
        carried: Bytes per window and home as a solver chose them; needed only where
            NVMe and link traffic are coupled and must move in the same window.
    """
    if instance.options.nvme_coupling == "gds":
        return _place_coupled(instance, homes, carried or {})
    placement: Placement = {}
    for link in LINKS:
        starts = first_window(instance, homes, link)
        slack = channel(instance, link).slack_bytes
        placement[link] = _fifo(starts, instance.boundary_bytes, slack)
    return placement


def _fifo(
    starts: Mapping[int, int], sizes: Sequence[int], room: Sequence[float]
) -> dict[int, Pieces]:
    """Queue boundaries in order; what is left at the end goes in the last window."""
    left = {i: float(sizes[i]) for i in sorted(starts)}
    pieces: dict[int, Pieces] = {i: {} for i in left}
    for window, free in enumerate(room):
        last = window == len(room) - 1
        for i, amount in _served(left, starts, window, float("inf") if last else free):
            pieces[i][window] = amount
    return pieces


def _served(
    left: dict[int, float], starts: Mapping[int, int], window: int, room: float
) -> Iterator[tuple[int, float]]:
    """Take up to ``room`` bytes from the queue of boundaries released by now."""
    for i in list(left):
        if room <= 0:
            return
        if starts[i] > window:
            continue
        amount = min(left[i], room)
        room -= amount
        left[i] -= amount
        if left[i] <= 0:
            del left[i]
        if amount > 0:
            yield i, amount


def _place_coupled(
    instance: Instance, homes: Sequence[Home], carried: Carried
) -> Placement:
    """Place where an NVMe byte crosses the link and the disk in one window."""
    placement: Placement = {link: {} for link in LINKS}
    pairs: tuple[tuple[Link, Link], ...] = (("d2h", "nvme_write"), ("h2d", "nvme_read"))
    for link, disk in pairs:
        starts = first_window(instance, homes, link)
        slack = channel(instance, link).slack_bytes
        on_disk = {i: a for i, a in starts.items() if homes[i] == Home.NVME}
        in_dram = {i: a for i, a in starts.items() if homes[i] == Home.CPU}
        both = map(min, slack, channel(instance, disk).slack_bytes)
        room = carried.get((link, Home.NVME)) or list(both)
        moved = _fifo(on_disk, instance.boundary_bytes, room)
        rest = [free - _load(moved, w) for w, free in enumerate(slack)]
        room = carried.get((link, Home.CPU)) or rest
        placement[disk] = moved
        placement[link] = {
            **{i: dict(pieces) for i, pieces in moved.items()},
            **_fifo(in_dram, instance.boundary_bytes, room),
        }
    return placement


def _load(pieces: Mapping[int, Pieces], window: int) -> float:
    """Return the bytes of all boundaries in one window."""
    return sum(amounts.get(window, 0.0) for amounts in pieces.values())


def exposed_s(instance: Instance, placement: Placement) -> dict[str, float]:
    """Return seconds per link that placed traffic adds beyond the mandatory.

    This is the sum of Delta_w / B (links) and eps_w / B (NVMe) of the objective.
    """
    result: dict[str, float] = {}
    for link in LINKS:
        lane = channel(instance, link)
        over = 0.0
        for window, free in enumerate(lane.slack_bytes):
            over += max(0.0, _load(placement[link], window) - free)
        result[link] = over / lane.rate
    return result
