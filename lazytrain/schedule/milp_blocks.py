"""Recomputed blocks in the compact program: the path, and what a block takes in HBM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyscipopt import quicksum

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.program import STORED, Edges, common_divisor, is_equal


def needs_edges(instance: Instance) -> bool:
    """Whether recomputation edges matter beyond their additive cost."""
    options = instance.options
    widths_do = is_equal(instance) and options.memory == "static"
    return options.read_deadline == "block" or (options.transient and not widths_do)


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
        limit = instance.room_bytes.gpu // unit
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
    limit = instance.room_bytes.gpu // common_divisor(instance)
    used = quicksum(homes[Home.GPU])
    model.addCons(used + widest <= limit, name="transient")
    return widest
