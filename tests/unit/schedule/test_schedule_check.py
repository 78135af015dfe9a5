"""Planted faults: each kind of broken plan is caught by the replay."""

from __future__ import annotations

import pytest

from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.check import PlanViolation, check
from lazytrain.schedule.instance import Budget, Fixed, Options
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import LETTERS, Solve
from lazytrain.schedule.solve import solve
from lazytrain.schedule.windows import place


def plan_of(instance, letters):
    """Return the plan of a row of letters G, C, N, R, budgets not looked at."""
    homes = [LETTERS[letter] for letter in letters]
    placement = place(instance, homes)
    value = terms(instance, homes, placement).total_s
    how = Solve(status="heuristic", method="test", objective_s=value)
    return assemble(instance, homes, placement, how)


def kinds(plan, instance):
    """Return the kinds of violation that the replay finds."""
    return {violation.kind for violation in check(plan, instance).violations}


def edited(plan, index, **changes):
    """Return the plan with one transfer changed."""
    transfers = list(plan.transfers)
    transfers[index] = transfers[index].model_copy(update=changes)
    return plan.model_copy(update={"transfers": tuple(transfers)})


def find(plan, link, boundary):
    """Return the index of one transfer."""
    return next(
        k
        for k, t in enumerate(plan.transfers)
        if (t.link, t.boundary) == (link, boundary)
    )


def test_sound_plans_pass_with_the_objective_by_hand(make_instance):
    instance = make_instance()
    report = check(plan_of(instance, "NCRRGCG"), instance)
    assert report.is_valid
    # Two omitted; five kept, one of them on NVMe; boundary 5 has window 5 only,
    # where 50 B/s x 1 s of 100 B fit: 1 s exposed down, none up (50 B/s x 2 s).
    assert report.recompute_s == 2.0
    assert report.exposed_s["d2h"] == pytest.approx(1.0)
    assert report.exposed_s["h2d"] == 0.0
    assert report.objective_s == pytest.approx(3.0 + 5e-4 + 1e-3)
    assert report.used_bytes == {"gpu": 200, "cpu": 200, "nvme": 100}


@pytest.mark.parametrize("tier", ["gpu", "cpu", "nvme"])
def test_a_budget_off_by_one_byte_is_caught(make_instance, tier):
    exact = {"gpu": 200, "cpu": 200, "nvme": 100}
    instance = make_instance(budget_bytes=Budget(**exact))
    assert kinds(plan_of(instance, "NCRRGCG"), instance) == set()
    short = make_instance(budget_bytes=Budget(**exact | {tier: exact[tier] - 1}))
    assert kinds(plan_of(short, "NCRRGCG"), short) == {"budget"}


def test_transient_memory_is_charged_to_the_byte(make_instance):
    options = Options(transient=True)
    fits = make_instance(budget_bytes=Budget(gpu=400, cpu=0, nvme=0), options=options)
    assert kinds(plan_of(fits, "GRRRRRG"), fits) == {"budget"}
    assert kinds(plan_of(fits, "GRRGRRG"), fits) == {"budget"}
    room = make_instance(budget_bytes=Budget(gpu=500, cpu=0, nvme=0), options=options)
    assert kinds(plan_of(room, "GRRGRRG"), room) == set()


def test_a_transfer_outside_its_windows_is_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    late = edited(plan, find(plan, "d2h", 2), window_bytes={2: 50.0, 6: 50.0})
    assert "window" in kinds(late, instance)
    early = edited(plan, find(plan, "h2d", 2), window_bytes={1: 100.0})
    assert "window" in kinds(early, instance)


def test_deadlines_narrow_the_read_windows(make_instance):
    causal = make_instance(options=Options(read_deadline="block"))
    plan = plan_of(causal, "GGCRGRG")
    assert min(plan.transfers[find(plan, "h2d", 2)].window_bytes) == 4
    soon = edited(plan, find(plan, "h2d", 2), window_bytes={3: 100.0})
    assert "window" in kinds(soon, causal)


def test_lost_and_invented_bytes_are_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    index = find(plan, "d2h", 2)
    assert "bytes" in kinds(edited(plan, index, window_bytes={2: 99.0}), instance)
    minus = {2: 150.0, 3: -50.0}
    assert "bytes" in kinds(edited(plan, index, window_bytes=minus), instance)


def test_a_boundary_moved_twice_is_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    again = (*plan.transfers, plan.transfers[find(plan, "d2h", 2)])
    twice = plan.model_copy(update={"transfers": again})
    assert "transfer" in kinds(twice, instance)


def test_a_skipped_reload_is_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    kept = tuple(t for t in plan.transfers if t.link != "h2d")
    assert "transfer" in kinds(plan.model_copy(update={"transfers": kept}), instance)


def test_a_transfer_of_a_boundary_that_stays_is_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    stray = edited(plan, find(plan, "d2h", 2), boundary=1)
    assert "transfer" in kinds(stray, instance)
    beyond = edited(plan, find(plan, "d2h", 2), boundary=40)
    assert "transfer" in kinds(beyond, instance)


def test_wrong_events_are_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    late = edited(plan, find(plan, "h2d", 2), deadline="backward:0")
    assert kinds(late, instance) == {"event"}


def test_a_hidden_exposure_is_caught(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGRRRCG")
    claimed = plan.solve.model_copy(update={"objective_s": 3.0004})
    cheap = plan.model_copy(update={"solve": claimed})
    assert kinds(cheap, instance) == {"objective"}


def test_bytes_crammed_into_one_window_change_the_objective(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    crammed = edited(plan, find(plan, "d2h", 2), window_bytes={2: 100.0})
    assert kinds(crammed, instance) == {"objective"}


def test_coupled_traffic_must_share_its_windows(make_instance):
    instance = make_instance(options=Options(nvme_coupling="gds"))
    plan = plan_of(instance, "NGGRRRG")
    assert kinds(plan, instance) == set()
    index = find(plan, "d2h", 0)
    apart = {5: 50.0, 4: 50.0}
    assert "coupling" in kinds(edited(plan, index, window_bytes=apart), instance)


def test_another_instance_and_sizes_are_refused(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    assert kinds(plan, make_instance(name="other")) == {"identity"}
    bigger = make_instance(boundary_bytes=(101,) + (100,) * 6)
    assert {"identity", "size"} <= kinds(plan, bigger)
    assert "identity" in kinds(plan, make_instance(layers=7))


def test_blocks_and_fixed_choices_are_kept(make_instance):
    limited = make_instance(max_block=3)
    assert kinds(plan_of(limited, "GRRRGRG"), limited) == {"max_block"}
    fixed = make_instance(fixed=Fixed(gpu=(0, 3, 6), edges=((0, 1), (3, 6))))
    assert kinds(plan_of(fixed, "GCRGRRG"), fixed) == set()
    assert kinds(plan_of(fixed, "CCRGRRG"), fixed) == {"fixed"}
    assert kinds(plan_of(fixed, "GRRGRRG"), fixed) == {"fixed"}


def test_status_must_match_bound_and_gap(make_instance):
    instance = make_instance()
    plan = solve(instance)
    assert check(plan, instance).is_valid
    for change in (
        {"bound_s": None},
        {"bound_s": plan.solve.objective_s - 0.5},
        {"bound_s": plan.solve.objective_s + 0.5},
    ):
        lie = plan.solve.model_copy(update=change)
        wrong = plan.model_copy(update={"solve": lie})
        assert kinds(wrong, instance) == {"status"}


def test_violations_raise_with_every_detail(make_instance):
    instance = make_instance(budget_bytes=Budget(gpu=199, cpu=99, nvme=100))
    with pytest.raises(PlanViolation, match=r"gpu holds 200 B, 1 B over.*cpu holds"):
        check(plan_of(instance, "GRRRRCG"), instance).raise_if_violated()
