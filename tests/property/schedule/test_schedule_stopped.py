"""A solve that stops early says so: its bound is below the optimum, its plan sound."""

from __future__ import annotations

import math
from functools import cache

import pytest
from schedule_oracles import OPTIONS, random_instance

from lazytrain.errors import NoSchedule
from lazytrain.schedule.check import check
from lazytrain.schedule.solve import RULES, Limits, solve

SEEDS = range(8000, 8024)


def instance_of(seed):
    """Return an instance of twelve layers."""
    option = OPTIONS[seed % len(OPTIONS)]
    return random_instance(seed, layers=12, options=option, max_block=6)


@cache
def stopped(seed):
    """Return the plan of a solve that may stop at once, None if there is none."""
    try:
        return solve(instance_of(seed), Limits(gap=1e6))
    except NoSchedule:
        return None


def least(seed):
    """Return the least objective of all rules, infinite if none fits."""
    found = [math.inf]
    for rule in RULES:
        try:
            found.append(solve(instance_of(seed), method=rule).solve.objective_s)
        except NoSchedule:
            continue
    return min(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_a_stopped_solve_is_below_the_optimum(seed):
    plan = stopped(seed)
    if plan is None:
        with pytest.raises(NoSchedule):
            solve(instance_of(seed))
        return
    check(plan, instance_of(seed)).raise_if_violated()
    best = solve(instance_of(seed)).solve.objective_s
    how = plan.solve
    assert how.bound_s <= best + 1e-6
    assert best <= how.objective_s + 1e-6
    distance = how.objective_s - how.bound_s
    assert how.gap == pytest.approx(distance / max(abs(how.bound_s), 1e-12), abs=1e-6)
    assert how.objective_s <= least(seed) + 1e-9


def test_some_did_stop_before_the_proof():
    plans = [plan for seed in SEEDS if (plan := stopped(seed)) is not None]
    early = [plan for plan in plans if plan.solve.status == "feasible"]
    assert any(plan.solve.objective_s - plan.solve.bound_s > 1e-3 for plan in early)
