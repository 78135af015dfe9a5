"""Transfers in the compact program: demand by suffix, slack, and what is exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyscipopt import quicksum

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.program import Edges, byte_unit
from lazytrain.schedule.windows import LINKS, Link, channel


class Demand:
    """Bytes that must move in windows k and later, per home, as expressions."""

    def __init__(
        self,
        model: Any,
        instance: Instance,
        homes: Mapping[Home, Sequence[Any]],
        edges: Edges,
    ) -> None:
        self._instance = instance
        self._homes = homes
        self._moved: dict[Home, Edges] = {}
        if instance.options.read_deadline == "block":
            for home in (Home.CPU, Home.NVME):
                self._moved[home] = _split_over_edges(model, homes[home], edges, home)

    def suffix(self, link: Link, home: Home, k: int) -> Any:
        """Return the bytes of boundaries whose windows all lie at k or later."""
        size = self._instance.boundary_bytes
        is_read = link in ("h2d", "nvme_read")
        if is_read and self._moved:
            moved = self._moved[home].items()
            return quicksum(size[s] * y for (s, e), y in moved if e >= k)
        late = 1 if is_read and self._instance.options.read_deadline == "layer" else 0
        first = max(0, k - late)
        return quicksum(
            size[i] * self._homes[home][i] for i in range(first, self._instance.layers)
        )


def _split_over_edges(
    model: Any, moved: Sequence[Any], edges: Edges, home: Home
) -> Edges:
    """Tie each moved boundary to the edge it starts; none may end at L."""
    last = len(moved) - 1
    share = {}
    for (s, e), x in edges.items():
        share[s, e] = model.addVar(f"moved[{home.value},{s},{e}]", ub=1)
        limit = 0 if e == last else x
        model.addCons(share[s, e] <= limit, name=f"on_edge[{home.value},{s},{e}]")
    for i in range(last):
        total = quicksum(y for (s, _), y in share.items() if s == i)
        model.addCons(total == moved[i], name=f"starts_edge[{home.value},{i}]")
    return share


def add_suffix_rows(
    model: Any, instance: Instance, demand: Demand, unit_s: float
) -> list[Any]:
    """Add E per link [unit_s]: demand from k on <= slack from k on + E, for all k."""
    exposure = []
    for link in LINKS:
        over = model.addVar(f"exposed[{link}]")
        exposure.append(over)
        lane = channel(instance, link)
        scale = 1.0 / (lane.rate * unit_s)
        slack = lane.slack_bytes
        for k in range(instance.layers):
            needed = demand.suffix(link, Home.NVME, k)
            if link in ("d2h", "h2d"):
                needed = needed + demand.suffix(link, Home.CPU, k)
            room = sum(slack[k:]) * scale
            model.addCons(scale * needed - over <= room, name=f"{link}[{k}]")
    return exposure


def add_coupled(
    model: Any,
    instance: Instance,
    demand: Demand,
    unit_s: float,
    carried: dict[tuple[Link, Home], Sequence[Any]],
) -> list[Any]:
    """Add windows in which an NVMe byte crosses link and disk at once (gds)."""
    exposure: list[Any] = []
    pairs: tuple[tuple[Link, Link], ...] = (("d2h", "nvme_write"), ("h2d", "nvme_read"))
    for link, disk in pairs:
        for home in (Home.CPU, Home.NVME):
            carried[link, home] = _add_carried(model, instance, demand, link, home)
        both = [
            a + b
            for a, b in zip(
                carried[link, Home.CPU], carried[link, Home.NVME], strict=True
            )
        ]
        exposure += _add_windows(model, instance, link, both, unit_s)
        exposure += _add_windows(
            model, instance, disk, carried[link, Home.NVME], unit_s
        )
    return exposure


def _add_carried(
    model: Any, instance: Instance, demand: Demand, link: Link, home: Home
) -> list[Any]:
    """Add bytes per window [byte_unit] that serve one home's nested demand."""
    unit = byte_unit(instance)
    amount = [
        model.addVar(f"carried[{link},{home.value},{w}]")
        for w in range(instance.layers)
    ]
    for k in range(instance.layers):
        given, needed = quicksum(amount[k:]), demand.suffix(link, home, k) / unit
        row = given == needed if k == 0 else given >= needed
        model.addCons(row, name=f"serve[{link},{home.value},{k}]")
    return amount


def _add_windows(
    model: Any, instance: Instance, link: Link, load: Sequence[Any], unit_s: float
) -> list[Any]:
    """Add one capacity row and one exposure variable [unit_s] per window."""
    lane = channel(instance, link)
    scale = 1.0 / (lane.rate * unit_s)
    exposure = []
    for w, slack in enumerate(lane.slack_bytes):
        over = model.addVar(f"exposed[{link},{w}]")
        exposure.append(over)
        needed = scale * byte_unit(instance) * load[w]
        model.addCons(needed - over <= scale * slack, name=f"{link}[{w}]")
    return exposure
