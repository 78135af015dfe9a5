"""Heuristics as plans: which boundaries they keep, and where."""

from __future__ import annotations

import pytest

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.schedule.check import check
from lazytrain.schedule.counts import single_tier, solve_counts
from lazytrain.schedule.heuristics import (
    fixed_interval,
    greedy,
    keep_all,
    recompute_all,
    sqrt_l,
)
from lazytrain.schedule.instance import Bandwidth, Budget, Fixed, Options


def letters(plan):
    """Return homes as one string of G, C, N, R."""
    return "".join(home.value[0] for home in plan.homes)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (keep_all, "ggccnng"),
        (recompute_all, "grrrrrg"),
        (sqrt_l, "grrgrrg"),
        (lambda i: fixed_interval(i, 2), "grgrcrg"),
        (lambda i: fixed_interval(i, 99), "grrrrrg"),
    ],
)
def test_rules_fill_the_fastest_tier_first(make_instance, rule, expected):
    instance = make_instance(budget_bytes=Budget(gpu=300, cpu=200, nvme=200))
    plan = rule(instance)
    check(plan, instance).raise_if_violated()
    assert letters(plan) == expected


def test_greedy_keeps_the_dearest_first(make_instance):
    instance = make_instance(
        rho_s=(1.0, 9.0, 1.0, 8.0, 1.0, 1.0),
        budget_bytes=Budget(gpu=400, cpu=0, nvme=0),
    )
    assert letters(greedy(instance)) == "grgrgrg"


def test_rules_respect_deadlines_and_blocks(make_instance):
    instance = make_instance(
        max_block=3,
        options=Options(read_deadline="block", transient=True),
        budget_bytes=Budget(gpu=400, cpu=300, nvme=0),
    )
    for rule in (recompute_all, sqrt_l, greedy):
        check(rule(instance), instance).raise_if_violated()


def test_what_fits_nowhere_is_an_error(make_instance):
    small = make_instance(budget_bytes=Budget(gpu=200, cpu=100, nvme=0))
    with pytest.raises(NoSchedule, match="7 boundaries of"):
        keep_all(small)
    with pytest.raises(InvalidInput, match="fixed-interval"):
        fixed_interval(small, 0)
    with pytest.raises(InvalidInput, match="max_block is 2"):
        fixed_interval(make_instance(max_block=2), 3)


@pytest.mark.parametrize(
    "change",
    [
        {"options": Options(transient=True)},
        {"options": Options(nvme_coupling="gds")},
        {"options": Options(read_deadline="block")},
        {"max_block": 3},
        {"lambda_c_s": 0.5, "lambda_n_s": 0.25},
        {"boundary_bytes": (100,) * 6 + (101,)},
    ],
    ids=str,
)
def test_counting_refuses_what_its_exchange_argument_does_not_cover(
    make_instance, change
):
    assert solve_counts(make_instance()).solve.status == "optimal"
    with pytest.raises(InvalidInput, match="use milp"):
        solve_counts(make_instance(**change))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"options": Options(transient=True)}, "transient memory"),
        ({"fixed": Fixed(gpu=(0, 6))}, "fixed variables"),
        ({"budget_bytes": Budget(gpu=300, cpu=100, nvme=0)}, "must be 0"),
        ({"budget_bytes": Budget(gpu=300, cpu=0, nvme=100)}, "must be 0"),
    ],
    ids=str,
)
def test_the_dynamic_program_refuses_a_second_tier_and_what_it_leaves_out(
    make_instance, change, why
):
    alone = {"budget_bytes": Budget(gpu=300, cpu=99, nvme=99)}
    assert single_tier(make_instance(**alone)).solve.status == "optimal"
    with pytest.raises(InvalidInput, match=why):
        single_tier(make_instance(**alone | change))


def test_what_no_window_can_bring_back_stays_in_hbm(make_instance):
    """Read a layer ahead, boundary 5 would need window 6 of 0..5."""
    instance = make_instance(
        options=Options(read_deadline="layer"),
        budget_bytes=Budget(gpu=200, cpu=700, nvme=0),
    )
    plan = keep_all(instance)
    check(plan, instance).raise_if_violated()
    assert letters(plan) == "cccccgg"


def test_greedy_takes_the_faster_tier_of_two_that_cost_the_same(make_instance):
    fast = Bandwidth(d2h=1e6, h2d=1e6, nvme_write=1e6, nvme_read=1e6)
    roomy = Budget(gpu=700, cpu=700, nvme=700)
    instance = make_instance(bandwidth=fast, budget_bytes=roomy, lambda_n_s=0.0)
    assert letters(greedy(instance)) == "ggggggg"
