"""The paper's mixed-integer program in its compact, exactly equivalent form.

Two facts make it small. Block costs add up to ``rho_{i-1}`` per omitted boundary, so
edges leave the objective. Transfer windows are nested suffixes, so the per-window
variables d, h, q, r reduce to one knapsack row per window and one exposure variable
per link (see :mod:`lazytrain.schedule.literal` for the unreduced form). Edges come
back only where they carry information: causal read deadlines and transient memory.

All times are divided by ``unit_s`` before they reach the solver, whose tolerances are
absolute; bytes are divided by the greatest common divisor of the boundaries, so that
budget rows have integer coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyscipopt import Model, quicksum

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.windows import LINKS, Link, channel

Edges = dict[tuple[int, int], Any]
STORED = (Home.GPU, Home.CPU, Home.NVME)


@dataclass(frozen=True)
class Program:
    """A built model and where to read a schedule from it."""

    model: Any
    homes: Mapping[Home, Sequence[Any]]
    unit_s: float
    edges: Edges = field(default_factory=dict)
    carried: Mapping[tuple[Link, Home], Sequence[Any]] = field(default_factory=dict)
    carried_unit: float = 1.0
    widest: Any = None


def build(instance: Instance) -> Program:
    """Build the compact program of an instance.

    Returns:
        The program; its objective times ``unit_s`` is in seconds.
    """
    model = Model(instance.name)
    model.hideOutput()
    unit_s = time_unit_s(instance)
    homes = add_homes(model, instance)
    add_budgets(model, instance, homes)
    add_max_block(model, instance, homes)
    add_fixed(model, instance, homes)
    edges = add_edges(model, instance, homes) if needs_edges(instance) else {}
    widest = None
    if instance.options.transient and edges:
        add_transient(model, instance, homes, edges)
    elif instance.options.transient:
        widest = add_widest_block(model, instance, homes)
    demand = Demand(model, instance, homes, edges)
    carried: dict[tuple[Link, Home], Sequence[Any]] = {}
    if instance.options.nvme_coupling == "gds":
        exposure = add_coupled(model, instance, demand, unit_s, carried)
    else:
        exposure = add_suffix_rows(model, instance, demand, unit_s)
    model.setObjective(cost(instance, homes, unit_s) + quicksum(exposure), "minimize")
    unit = byte_unit(instance)
    return Program(model, homes, unit_s, edges, carried, unit, widest)


def time_unit_s(instance: Instance) -> float:
    """Return the mean transition cost, the solver's unit of time."""
    mean = sum(instance.rho_s) / instance.layers
    return mean if mean > 0 else 1.0


def byte_unit(instance: Instance) -> float:
    """Return the largest boundary, the solver's unit of moved bytes."""
    return float(max(*instance.boundary_bytes, 1))


def needs_edges(instance: Instance) -> bool:
    """Whether recomputation edges matter beyond their additive cost."""
    options = instance.options
    widths_do = is_equal(instance) and options.memory == "static"
    return options.read_deadline == "block" or (options.transient and not widths_do)


def is_equal(instance: Instance) -> bool:
    """Whether all boundaries have one size, so that counting them is enough."""
    return len(set(instance.boundary_bytes)) == 1


def add_homes(model: Any, instance: Instance) -> dict[Home, list[Any]]:
    """Add g, c, n and ``z = g + c + n <= 1``, with both ends materialized."""
    last = instance.layers
    homes = {
        home: [model.addVar(f"{home.value}[{i}]", vtype="B") for i in range(last + 1)]
        for home in STORED
    }
    for i in range(last + 1):
        kept = quicksum(homes[home][i] for home in STORED)
        if i in (0, last):
            model.addCons(kept == 1, name=f"end[{i}]")
        else:
            model.addCons(kept <= 1, name=f"home[{i}]")
        if not can_move(instance, i):
            for home in (Home.CPU, Home.NVME):
                model.addCons(homes[home][i] == 0, name=f"no_window[{home.value},{i}]")
    return homes


def can_move(instance: Instance, boundary: int) -> bool:
    """Whether any write and read window is left for a boundary."""
    late = 1 if instance.options.read_deadline == "layer" else 0
    return boundary + late < instance.layers


def common_divisor(instance: Instance) -> int:
    """Return the greatest common divisor of all boundary sizes."""
    return math.gcd(*instance.boundary_bytes) or 1


def add_budgets(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> None:
    """Bound each tier: ``sum A_i g_i <= M_G``, likewise C and N (Section 3.3)."""
    unit = common_divisor(instance)
    for home in STORED:
        budget: int = getattr(instance.budget_bytes, home.value)
        used = quicksum(
            size // unit * homes[home][i]
            for i, size in enumerate(instance.boundary_bytes)
        )
        model.addCons(used <= budget // unit, name=f"budget[{home.value}]")


def add_max_block(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> None:
    """Keep blocks at most K long: one kept boundary in any K neighbours."""
    length = instance.max_block
    if length is None:
        return
    for k in range(instance.layers - length):
        window = range(k + 1, k + length + 1)
        kept = quicksum(homes[home][i] for home in STORED for i in window)
        model.addCons(kept >= 1, name=f"max_block[{k}]")


def add_fixed(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> None:
    """Apply what the instance fixes: the GPU set, and edges with all they skip."""
    if instance.fixed.gpu is not None:
        chosen = set(instance.fixed.gpu)
        for i in range(instance.layers + 1):
            wanted = 1 if i in chosen else 0
            model.addCons(homes[Home.GPU][i] == wanted, name=f"fixed_gpu[{i}]")
    for start, end in instance.fixed.edges or ():
        for i in range(start, end + 1):
            kept = quicksum(homes[home][i] for home in STORED)
            wanted = 1 if i in (start, end) else 0
            model.addCons(kept == wanted, name=f"fixed_edge[{start},{end},{i}]")


def add_edges(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> Edges:
    """Add x and the checkpoint path: inflow = outflow = z at each boundary."""
    last = instance.layers
    reach = instance.max_block or last
    edges = {
        (s, e): model.addVar(f"x[{s},{e}]", vtype="B")
        for s in range(last)
        for e in range(s + 1, min(s + reach, last) + 1)
    }
    for i in range(last + 1):
        kept = quicksum(homes[home][i] for home in STORED)
        if i < last:
            leaving = quicksum(x for (s, _), x in edges.items() if s == i)
            model.addCons(leaving == kept, name=f"outflow[{i}]")
        if i > 0:
            entering = quicksum(x for (_, e), x in edges.items() if e == i)
            model.addCons(entering == kept, name=f"inflow[{i}]")
    return edges


def add_transient(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]], edges: Edges
) -> None:
    """Charge each block's recomputed boundaries to the GPU budget (Theta).

    With a memory profile, boundaries behind the block are gone by then.
    """
    unit = common_divisor(instance)
    size = [value // unit for value in instance.boundary_bytes]
    is_profile = instance.options.memory == "profile"
    for k in range(instance.layers):
        alive = size[: k + 1] if is_profile else size
        kept = quicksum(a * homes[Home.GPU][i] for i, a in enumerate(alive))
        block = quicksum(
            sum(size[s + 1 : e]) * x for (s, e), x in edges.items() if s <= k < e
        )
        limit = instance.budget_bytes.gpu // unit
        model.addCons(kept + block <= limit, name=f"transient[{k}]")


def add_widest_block(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> Any:
    """Charge the widest block where boundaries are equal: Theta without edges.

    Exactly one width w is chosen; then any w neighbours hold one kept boundary, and
    the GPU budget pays for the w - 1 that a block of that width recomputes. Returns
    those, in units of the boundaries' size.
    """
    last = instance.layers
    longest = min(instance.max_block or last, last)
    width = [model.addVar(f"width[{w}]", vtype="B") for w in range(1, longest + 1)]
    model.addCons(quicksum(width) == 1, name="one_width")
    for w in range(1, longest):
        within = quicksum(width[:w])
        for k in range(last - w):
            window = range(k + 1, k + w + 1)
            kept = quicksum(homes[home][i] for home in STORED for i in window)
            model.addCons(kept >= within, name=f"width[{w},{k}]")
    widest = quicksum(w * y for w, y in enumerate(width))
    limit = instance.budget_bytes.gpu // common_divisor(instance)
    used = quicksum(homes[Home.GPU])
    model.addCons(used + widest <= limit, name="transient")
    return widest


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


def cost(instance: Instance, homes: Mapping[Home, Sequence[Any]], unit_s: float) -> Any:
    """Return recomputation and lambda terms as a linear expression [unit_s]."""
    extra = {
        Home.GPU: 0.0,
        Home.CPU: instance.lambda_c_s,
        Home.NVME: instance.lambda_n_s,
    }
    total = 0.0
    parts = []
    for i in range(instance.layers + 1):
        interior = 0 < i < instance.layers
        rho = instance.rho_s[i - 1] if interior else 0.0
        total += rho / unit_s
        for home in STORED:
            paid = (instance.lambda_z_s + extra[home] - rho) / unit_s
            parts.append(paid * homes[home][i])
    return quicksum(parts) + total
