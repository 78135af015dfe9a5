"""A first schedule for the printed program, which finds bounds sooner than schedules.

With the implied suffix rows the root bound is already the optimum, and the search for a
schedule that meets it takes nearly all of the time. The start only supplies an
incumbent: the bound that proves it is still the program's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lazytrain.errors import LazyTrainError
from lazytrain.schedule import heuristics
from lazytrain.schedule.counts import solve_counts
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home

# Root work that costs tens of seconds at 64 layers and moves no bound.
LEAN = {
    "propagating/probing/maxprerounds": 0,
    "separating/aggregation/maxtriesroot": 200,
}


def first_schedule(instance: Instance) -> tuple[Sequence[Home], bool] | None:
    """Return a good schedule and whether it comes from an exact planner."""
    if not instance.fixed.is_empty:
        return None
    for planner, is_exact in ((solve_counts, True), (heuristics.greedy, False)):
        try:
            return planner(instance).homes, is_exact
        except LazyTrainError:
            continue
    return None


def add_start(program: Any, instance: Instance) -> None:
    """Give the program a first schedule; the solver completes the transfers."""
    found = first_schedule(instance)
    if found is None:
        return
    homes, is_exact = found
    model = program.model
    model.setParams(LEAN)
    if is_exact:
        _only_complete(model)
    start = model.createPartialSol()
    for home, variables in program.homes.items():
        for i, variable in enumerate(variables):
            model.setSolVal(start, variable, float(homes[i] == home))
    path = set(pairwise(i for i, h in enumerate(homes) if h != Home.RECOMPUTE))
    for edge, variable in program.edges.items():
        model.setSolVal(start, variable, float(edge in path))
    model.addSol(start)


def _only_complete(model: Any) -> None:
    """Switch off the search for schedules, but for completing the given one."""
    from pyscipopt import SCIP_PARAMSETTING

    model.setHeuristics(SCIP_PARAMSETTING.OFF)
    model.setParam("heuristics/completesol/freq", 0)
