"""The program's optimum against brute force, HiGHS and two exact planners."""

from __future__ import annotations

import math

import numpy as np
import pytest
from schedule_oracles import OPTIONS, brute_force, highs, random_instance

from lazytrain.errors import NoSchedule
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Budget, Options
from lazytrain.schedule.solve import RULES, solve


def optimum(instance, method=None):
    """Return the solved and checked objective, infinite if infeasible."""
    try:
        plan = solve(instance, method=method)
    except NoSchedule:
        return math.inf
    assert plan.solve.status == "optimal"
    check(plan, instance).raise_if_violated()
    return plan.solve.objective_s


@pytest.mark.parametrize("seed", range(200))
def test_program_equals_brute_force(seed):
    instance = random_instance(seed, layers=2 + seed % 4, equal=seed % 3 == 0)
    assert optimum(instance) == pytest.approx(brute_force(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(300, 312))
def test_program_equals_brute_force_on_eight_boundaries(seed):
    instance = random_instance(seed, layers=7)
    assert optimum(instance) == pytest.approx(brute_force(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(120))
def test_every_option_equals_brute_force(seed):
    options = [o for o in OPTIONS if o.nvme_coupling == "independent"]
    instance = random_instance(
        1000 + seed,
        layers=2 + seed % 4,
        equal=seed % 5 < 2,
        options=options[seed % len(options)],
        max_block=None if seed % 2 else 2 + seed % 3,
    )
    assert optimum(instance) == pytest.approx(brute_force(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(36))
def test_literal_program_equals_compact_and_highs(seed):
    instance = random_instance(
        2000 + seed,
        layers=2 + seed % 4,
        options=OPTIONS[seed % len(OPTIONS)],
        max_block=None if seed % 2 else 3,
    )
    expected = highs(instance)
    assert optimum(instance) == pytest.approx(expected, abs=1e-6)
    method = "literal" if seed % 3 else "literal-without-suffix-rows"
    assert optimum(instance, method) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_larger_instances_equal_highs(seed):
    instance = random_instance(
        3000 + seed,
        layers=10 + seed,
        equal=seed % 2 == 0,
        options=OPTIONS[(3 * seed) % len(OPTIONS)],
        max_block=5,
    )
    assert optimum(instance) == pytest.approx(highs(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_counting_planner_equals_program(seed):
    deadline = ("paper", "layer")[seed % 2]
    instance = random_instance(
        4000 + seed,
        layers=3 + seed % 12,
        equal=True,
        options=Options(read_deadline=deadline),
    )
    if len(set(instance.rho_s)) > 3:
        instance = instance.model_copy(update={"rho_s": (0.5,) * instance.layers})
    assert optimum(instance, "counts") == pytest.approx(optimum(instance), abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_dynamic_program_equals_program(seed):
    instance = random_instance(
        5000 + seed, layers=2 + seed % 20, max_block=None if seed % 2 else 4
    )
    gpu = int(sum(instance.boundary_bytes) * (0.2 + seed / 60))
    alone = instance.model_copy(update={"budget_bytes": Budget(gpu=gpu, cpu=0, nvme=0)})
    expected = optimum(alone, "single-tier")
    assert optimum(alone) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_no_rule_beats_the_program(seed):
    instance = random_instance(
        6000 + seed, layers=12, options=OPTIONS[seed % len(OPTIONS)], max_block=6
    )
    best = optimum(instance)
    for method in [*RULES, "fixed-interval:4"]:
        try:
            plan = solve(instance, method=method)
        except NoSchedule:
            continue
        report = check(plan, instance)
        report.raise_if_violated()
        assert report.objective_s >= best - 1e-6


def test_everything_stays_on_the_gpu_where_it_fits():
    instance = random_instance(7, layers=9)
    plenty = 2 * sum(instance.boundary_bytes)
    roomy = instance.model_copy(
        update={
            "budget_bytes": Budget(gpu=plenty, cpu=plenty, nvme=plenty),
            "lambda_c_s": 0.0,
        }
    )
    assert set(solve(roomy).homes) == {"gpu"}


def test_instances_cover_what_matters():
    """The random family reaches each tier, recomputation, exposure, infeasibility."""
    homes, exposed, infeasible = set(), 0, 0
    for seed in range(60):
        instance = random_instance(seed, layers=2 + seed % 4, equal=seed % 3 == 0)
        try:
            plan = solve(instance)
        except NoSchedule:
            infeasible += 1
            continue
        homes |= set(plan.homes)
        exposed += sum(check(plan, instance).exposed_s.values()) > 0
    assert homes == {"gpu", "cpu", "nvme", "recompute"}
    assert exposed >= 5
    assert 1 <= infeasible <= 30
    assert np.isfinite(exposed)


@pytest.mark.parametrize("method", ["milp", "literal", "literal-without-suffix-rows"])
def test_a_byte_that_crosses_link_and_disk_at_once_costs_more(method):
    """Here the two may not use different windows, and the optimum is dearer for it."""
    apart = random_instance(9045, layers=4)
    coupled = random_instance(9045, layers=4, options=Options(nvme_coupling="gds"))
    assert optimum(coupled) > optimum(apart) + 1e-3
    assert optimum(coupled, method) == pytest.approx(highs(coupled), abs=1e-6)
