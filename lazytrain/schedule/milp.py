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

from collections.abc import Mapping, Sequence
from typing import Any

from pyscipopt import Model, quicksum

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.milp_blocks import (
    add_edges,
    add_transient,
    add_widest_block,
    needs_edges,
)
from lazytrain.schedule.milp_transfers import Demand, add_coupled, add_suffix_rows
from lazytrain.schedule.plan import Home
from lazytrain.schedule.program import (
    STORED,
    Program,
    byte_unit,
    common_divisor,
    time_unit_s,
)
from lazytrain.schedule.windows import Link


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


def add_budgets(
    model: Any, instance: Instance, homes: Mapping[Home, Sequence[Any]]
) -> None:
    """Bound each tier: ``sum A_i g_i <= M_G``, likewise C and N (Section 3.3)."""
    unit = common_divisor(instance)
    for home in STORED:
        budget: int = getattr(instance.room_bytes, home.value)
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
