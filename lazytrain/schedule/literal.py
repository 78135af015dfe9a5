"""The paper's mixed-integer program as it is printed, one function per equation.

Variables are ``y = (x, z, g, c, n, d, h, q, r, eps)`` of Appendix B.1. It is kept for
fidelity and as an independent check of :mod:`lazytrain.schedule.milp`; spread over the
windows, the transfers hide a knapsack that no cut finds, so the solver stalls at 64
layers. The rows of :func:`add_suffix_rows` are implied by the others, and cure that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyscipopt import Model, quicksum

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.program import (
    STORED,
    Edges,
    Program,
    byte_unit,
    time_unit_s,
)
from lazytrain.schedule.windows import LINKS, WRITES, Link, channel, uses

Moves = dict[Link, dict[tuple[int, int], Any]]
Exposure = dict[Link, list[Any]]
Homes = Mapping[Home, Sequence[Any]]


def build(instance: Instance, suffix_rows: bool = True) -> Program:
    """Build the printed program, with or without the implied suffix rows."""
    model = Model(instance.name)
    model.hideOutput()
    unit_s = time_unit_s(instance)
    x, z, homes = add_variables(model, instance)
    add_path(model, instance, x, z)
    add_home(model, instance, z, homes)
    add_memory(model, instance, x, homes)
    add_fixed(model, instance, x, homes)
    moves, eps = add_moves(model, instance)
    for link in LINKS:
        add_conservation(model, instance, homes, moves, link)
        add_capacity(model, instance, moves, eps, link)
        if suffix_rows:
            add_suffix_rows(model, instance, homes, eps, link)
    if instance.options.read_deadline == "block":
        add_causal_reads(model, instance, x, moves)
    carried: dict[tuple[Link, Home], Sequence[Any]] = {}
    if instance.options.nvme_coupling == "gds":
        add_direct_storage(model, instance, moves)
        carried = add_carried(model, instance, homes, moves)
    model.setObjective(objective(instance, x, z, homes, eps, unit_s), "minimize")
    return Program(model, homes, unit_s, x, carried, byte_unit(instance))


def add_variables(
    model: Any, instance: Instance
) -> tuple[Edges, list[Any], dict[Home, list[Any]]]:
    """Add x over candidate edges, and z, g, c, n over boundaries (Section 3.3)."""
    last, reach = instance.layers, instance.max_block or instance.layers
    x = {
        (s, e): model.addVar(f"x[{s},{e}]", vtype="B")
        for s in range(last)
        for e in range(s + 1, min(s + reach, last) + 1)
    }
    boundaries = range(last + 1)
    z = [model.addVar(f"z[{i}]", vtype="B") for i in boundaries]
    homes = {
        home: [model.addVar(f"{letter}[{i}]", vtype="B") for i in boundaries]
        for home, letter in zip(STORED, "gcn", strict=True)
    }
    return x, z, homes


def add_path(model: Any, instance: Instance, x: Edges, z: Sequence[Any]) -> None:
    """Select one checkpoint path from boundary 0 to L."""
    last = instance.layers
    for i in range(last + 1):
        if i < last:
            leaving = quicksum(v for (s, _), v in x.items() if s == i)
            model.addCons(leaving == z[i], name=f"outflow[{i}]")
        if i > 0:
            entering = quicksum(v for (_, e), v in x.items() if e == i)
            model.addCons(entering == z[i], name=f"inflow[{i}]")
    model.addCons(z[0] == 1, name="first")
    model.addCons(z[last] == 1, name="last")


def add_home(model: Any, instance: Instance, z: Sequence[Any], homes: Homes) -> None:
    """Give each materialized boundary one home: ``z_i = g_i + c_i + n_i``."""
    for i in range(instance.layers + 1):
        total = quicksum(homes[home][i] for home in STORED)
        model.addCons(z[i] == total, name=f"home[{i}]")


def add_memory(model: Any, instance: Instance, x: Edges, homes: Homes) -> None:
    """Bound the bytes of each tier; add the widest block (Theta) where charged."""
    unit = byte_unit(instance)
    size = [value / unit for value in instance.boundary_bytes]
    for home in STORED:
        limit = getattr(instance.room_bytes, home.value) / unit
        used = quicksum(a * v for a, v in zip(size, homes[home], strict=True))
        if home == Home.GPU and instance.options.transient:
            used = add_transient(model, instance, x, homes, used)
        model.addCons(used <= limit, name=f"memory[{home.value}]")


def add_transient(
    model: Any, instance: Instance, x: Edges, homes: Homes, kept: Any
) -> Any:
    """Return GPU use with recomputed blocks: plus the widest, or the worst moment."""
    unit = byte_unit(instance)
    size = [value / unit for value in instance.boundary_bytes]
    theta = model.addVar("Theta")
    is_profile = instance.options.memory == "profile"
    if is_profile:
        model.addCons(theta >= kept, name="Theta[turn]")
    for k in range(instance.layers):
        block = quicksum(
            sum(size[s + 1 : e]) * v for (s, e), v in x.items() if s <= k < e
        )
        if is_profile:
            alive = zip(size[: k + 1], homes[Home.GPU], strict=False)
            block = block + quicksum(a * v for a, v in alive)
        model.addCons(theta >= block, name=f"Theta[{k}]")
    return theta if is_profile else kept + theta


def add_fixed(model: Any, instance: Instance, x: Edges, homes: Homes) -> None:
    """Apply the fixed GPU set and the fixed recomputation edges."""
    if instance.fixed.gpu is not None:
        for i, variable in enumerate(homes[Home.GPU]):
            wanted = 1 if i in instance.fixed.gpu else 0
            model.addCons(variable == wanted, name=f"fixed_gpu[{i}]")
    for edge in instance.fixed.edges or ():
        # An edge longer than max_block is no candidate: nothing can take it.
        row = x[edge] == 1 if edge in x else quicksum(x.values()) <= -1
        model.addCons(row, name=f"fixed_edge[{edge[0]},{edge[1]}]")


def add_moves(model: Any, instance: Instance) -> tuple[Moves, Exposure]:
    """Add d, h, q, r [byte_unit] per boundary and window, and eps per window."""
    letters = dict(zip(LINKS, "dhqr", strict=True))
    moves: Moves = {}
    eps: Exposure = {}
    for link in LINKS:
        is_late = link not in WRITES and instance.options.read_deadline == "layer"
        moves[link] = {
            (i, w): model.addVar(f"{letters[link]}[{i},{w}]")
            for i in range(instance.layers + 1)
            for w in range(i + int(is_late), instance.layers)
        }
        eps[link] = [
            model.addVar(f"eps[{link},{w}]", lb=_baseline(instance, link, w))
            for w in range(instance.layers)
        ]
    return moves, eps


def _baseline(instance: Instance, link: Link, window: int) -> float:
    """Return what mandatory traffic alone exposes in a window [byte_unit]."""
    lane = channel(instance, link)
    over = lane.mandatory_bytes[window] - lane.rate * lane.window_s[window]
    return max(0.0, over) / byte_unit(instance)


def add_conservation(
    model: Any, instance: Instance, homes: Homes, moves: Moves, link: Link
) -> None:
    """Move a boundary once: ``sum_w d_{i,w} = A_i (c_i + n_i)``, h, q, r alike."""
    unit = byte_unit(instance)
    for i, size in enumerate(instance.boundary_bytes):
        given = quicksum(v for (j, _), v in moves[link].items() if j == i)
        moved = quicksum(homes[home][i] for home in STORED if uses(home, link))
        model.addCons(given == size / unit * moved, name=f"conserve[{link},{i}]")


def add_capacity(
    model: Any, instance: Instance, moves: Moves, eps: Exposure, link: Link
) -> None:
    """Fit each window: ``sum_i d_{i,w} + G_w <= C_w + eps_w``, the others alike."""
    unit, lane = byte_unit(instance), channel(instance, link)
    for w in range(instance.layers):
        load = quicksum(v for (_, u), v in moves[link].items() if u == w)
        room = (lane.rate * lane.window_s[w] - lane.mandatory_bytes[w]) / unit
        model.addCons(load - eps[link][w] <= room, name=f"capacity[{link},{w}]")


def add_suffix_rows(
    model: Any, instance: Instance, homes: Homes, eps: Exposure, link: Link
) -> None:
    """Add what conservation and capacity imply for windows k to the end together."""
    unit, lane = byte_unit(instance), channel(instance, link)
    late = link not in WRITES and instance.options.read_deadline == "layer"
    for k in range(instance.layers):
        needed = quicksum(
            instance.boundary_bytes[i] / unit * homes[home][i]
            for i in range(max(0, k - int(late)), instance.layers)
            for home in STORED
            if uses(home, link)
        )
        room = sum(
            lane.rate * lane.window_s[w] - lane.mandatory_bytes[w]
            for w in range(k, instance.layers)
        )
        over = quicksum(eps[link][k:])
        model.addCons(needed - over <= room / unit, name=f"suffix[{link},{k}]")


def add_causal_reads(model: Any, instance: Instance, x: Edges, moves: Moves) -> None:
    """Read a boundary before its block starts: no bytes in windows below its end."""
    unit = byte_unit(instance)
    for link in ("h2d", "nvme_read"):
        for (i, w), variable in moves[link].items():
            ended = quicksum(v for (s, e), v in x.items() if s == i and e <= w)
            limit = instance.boundary_bytes[i] / unit * ended
            model.addCons(variable <= limit, name=f"causal[{link},{i},{w}]")


def add_direct_storage(model: Any, instance: Instance, moves: Moves) -> None:
    """Move an NVMe byte over link and disk in one window: q <= d and r <= h."""
    del instance
    pairs: tuple[tuple[Link, Link], ...] = (("nvme_write", "d2h"), ("nvme_read", "h2d"))
    for disk, link in pairs:
        for key, variable in moves[disk].items():
            model.addCons(variable <= moves[link][key], name=f"direct[{disk},{key}]")


def add_carried(
    model: Any, instance: Instance, homes: Homes, moves: Moves
) -> dict[tuple[Link, Home], Sequence[Any]]:
    """Add per-window totals by home, for reading a coupled schedule back."""
    del homes
    carried: dict[tuple[Link, Home], Sequence[Any]] = {}
    pairs: tuple[tuple[Link, Link], ...] = (("nvme_write", "d2h"), ("nvme_read", "h2d"))
    for disk, link in pairs:
        on_disk, in_dram = [], []
        for w in range(instance.layers):
            direct = model.addVar(f"carried[{disk},{w}]")
            rest = model.addVar(f"carried[{link},{w}]")
            moved = quicksum(v for (_, u), v in moves[disk].items() if u == w)
            total = quicksum(v for (_, u), v in moves[link].items() if u == w)
            model.addCons(direct == moved, name=f"total[{disk},{w}]")
            model.addCons(rest == total - moved, name=f"total[{link},{w}]")
            on_disk.append(direct)
            in_dram.append(rest)
        carried[link, Home.NVME] = on_disk
        carried[link, Home.CPU] = in_dram
    return carried


def objective(
    instance: Instance,
    x: Edges,
    z: Sequence[Any],
    homes: Homes,
    eps: Exposure,
    unit_s: float,
) -> Any:
    """Return recomputation, lambda terms and incremental exposure (Section 3.5)."""
    blocks = quicksum(
        sum(instance.rho_s[s : e - 1]) / unit_s * v for (s, e), v in x.items()
    )
    kept = instance.lambda_z_s / unit_s * quicksum(z)
    on_disk = instance.lambda_n_s / unit_s * quicksum(homes[Home.NVME])
    in_dram = instance.lambda_c_s / unit_s * quicksum(homes[Home.CPU])
    exposed = quicksum(
        byte_unit(instance)
        / (channel(instance, link).rate * unit_s)
        * (eps[link][w] - _baseline(instance, link, w))
        for link in LINKS
        for w in range(instance.layers)
    )
    return blocks + kept + on_disk + in_dram + exposed
