"""Statuses, messages and determinism of a solve."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import canonical_json
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Bandwidth, Budget, Fixed, Options
from lazytrain.schedule.published import instance_27b
from lazytrain.schedule.solve import Limits, solve


def test_same_instance_and_seed_give_the_same_plan():
    instance = instance_27b(8, "again")
    first, second = (solve(instance, Limits(seed=3)) for _ in range(2))
    assert first.sha256 == second.sha256
    blind = {"solve": {"seconds"}}
    assert canonical_json(first, blind) == canonical_json(second, blind)


def test_a_time_limit_leaves_incumbent_bound_and_gap():
    instance = instance_27b(8, "limited")
    plan = solve(instance, Limits(time_limit_s=60, gap=0.5))
    assert plan.solve.status in ("optimal", "feasible")
    assert plan.solve.bound_s <= plan.solve.objective_s
    assert plan.solve.gap >= 0
    check(plan, instance).raise_if_violated()


def test_a_limit_before_any_incumbent_is_an_error():
    with pytest.raises(NoSchedule, match="before it found any schedule"):
        solve(instance_27b(8, "none"), Limits(time_limit_s=1e-9))


def test_budgets_hold_to_the_byte_for_sizes_the_solver_rounds(make_instance):
    sizes = (10**9 + 7, 10**9 + 9, 10**9 + 21, 10**9 + 33, 10**9 + 87)
    exact = sizes[0] + sizes[1] + sizes[2] + sizes[4]
    for missing in (0, 1):
        instance = make_instance(
            layers=4,
            boundary_bytes=sizes,
            budget_bytes=Budget(gpu=exact - missing, cpu=0, nvme=0),
        )
        plan = solve(instance)
        check(plan, instance).raise_if_violated()
        assert plan.count("recompute") == 1 + missing


def test_infeasible_ends_are_named_with_both_sizes(make_instance):
    instance = make_instance(budget_bytes=Budget(gpu=199, cpu=0, nvme=0))
    with pytest.raises(NoSchedule) as error:
        solve(instance)
    message = str(error.value)
    assert "GPU budget 199 B is below the 200 B" in message
    assert "boundary 0" in message


def test_infeasible_budgets_say_what_each_tier_would_need(make_instance):
    instance = make_instance(max_block=2, budget_bytes=Budget(gpu=200, cpu=100, nvme=0))
    with pytest.raises(NoSchedule) as error:
        solve(instance)
    message = str(error.value)
    assert "GPU budget 200 B must rise to 300 B" in message
    assert "CPU budget 100 B must rise to 200 B" in message
    assert "max_block = 2 must be larger" in message


def test_infeasible_fixed_choices_are_named(make_instance):
    instance = make_instance(fixed=Fixed(gpu=(0, 1, 2, 3, 6)))
    with pytest.raises(NoSchedule, match="fixed GPU set must change"):
        solve(instance)
    crossing = make_instance(fixed=Fixed(edges=((0, 3), (1, 2))))
    with pytest.raises(NoSchedule, match="fixed edges must change"):
        solve(crossing)


def test_infeasible_transient_memory_is_explained(make_instance):
    instance = make_instance(
        budget_bytes=Budget(gpu=299, cpu=0, nvme=0), options=Options(transient=True)
    )
    with pytest.raises(NoSchedule, match="one layer's recomputation"):
        solve(instance)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"boundary_bytes": (-1,) * 7}, "boundary_bytes"),
        ({"boundary_bytes": (1,) * 6}, "boundary_bytes"),
        ({"rho_s": (-1.0,) * 6}, "rho_s"),
        ({"rho_s": (float("nan"),) * 6}, "rho_s"),
        ({"window_read_s": (1.0,) * 5}, "window_read_s"),
        ({"mandatory_h2d_bytes": (-5,) * 6}, "mandatory_h2d_bytes"),
        ({"max_block": 0}, "max_block"),
        ({"lambda_z_s": -1.0}, "lambda_z_s"),
        ({"fixed": {"gpu": (9,)}}, "fixed.gpu"),
        ({"fixed": {"edges": ((3, 2),)}}, "fixed.edges"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_nonsense_instances_are_refused_by_field(make_instance, change, field):
    with pytest.raises(ValidationError, match=field):
        make_instance(**change)


@pytest.mark.parametrize("rate", [0, -1, float("inf")])
def test_nonsense_rates_are_refused(rate):
    with pytest.raises(ValidationError, match="h2d"):
        Bandwidth(d2h=1, h2d=rate, nvme_write=1, nvme_read=1)


def test_nonsense_budgets_and_limits_are_refused():
    with pytest.raises(ValidationError, match="gpu"):
        Budget(gpu=-1, cpu=0, nvme=0)
    for bad in ({"time_limit_s": 0}, {"gap": -1}, {"seed": -1}):
        with pytest.raises(InvalidInput, match=next(iter(bad)).replace("_", "-")):
            Limits(**bad)


@pytest.mark.parametrize("method", ["nonsense", "fixed-interval", "fixed-interval:x"])
def test_unknown_methods_are_refused(make_instance, method):
    with pytest.raises(InvalidInput, match="method"):
        solve(make_instance(), method=method)


def test_the_instance_names_its_method(make_instance):
    plan = solve(make_instance(method="fixed-interval:3"))
    assert plan.solve.method == "fixed-interval:3"
    assert [b.start for b in plan.blocks] == [0, 3]


def test_rules_take_no_fixed_variables(make_instance):
    instance = make_instance(fixed=Fixed(gpu=(0, 3, 6)))
    with pytest.raises(InvalidInput, match="fixes variables"):
        solve(instance, method="greedy")


def test_a_restricted_solve_says_so(make_instance):
    plan = solve(make_instance(fixed=Fixed(gpu=(0, 3, 6))))
    assert plan.solve.scope == "restricted"
    assert plan.solve.fixed == "GPU set of 3 boundaries"
