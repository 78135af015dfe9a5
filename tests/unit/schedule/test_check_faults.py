"""Every rule of the checker refuses a plan that breaks it, and nothing else does.

Plans are edited past their own validation, as a file from elsewhere may be.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_schedule_check import kinds, plan_of

from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Bandwidth, Budget, Fixed, Instance, Options
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.solve import solve

ROOMY = Budget(gpu=700, cpu=700, nvme=700)
RATES: dict[str, Any] = {"d2h": 1e6, "h2d": 1e6, "nvme_write": 1e6, "nvme_read": 1e6}
FAST = Bandwidth(**RATES)


def details(plan: Plan, instance: Instance) -> str:
    """Return all that the replay says of a plan."""
    return "; ".join(v.detail for v in check(plan, instance).violations)


def test_a_plan_names_its_model_and_layers(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    for field, value in (
        ("model", "other"),
        ("layer_types", ("layer",) * 5 + ("other",)),
        ("num_layers", 5),
    ):
        changed = plan.model_copy(update={field: value})
        assert f"{field} is {value}" in details(changed, instance)


@pytest.mark.parametrize("change", [{"batch": 3}, {"seq_len": 9}])
def test_either_side_of_the_batch_is_compared(make_instance, change):
    run = {"batch": 2, "seq_len": 8, "micro_batch": 2, "master": "fp32"}
    instance = make_instance(execution=run)
    plan = plan_of(instance, "GGCRRRG")
    assert check(plan, instance).violations == ()
    wrong = plan.model_copy(update=change)
    assert kinds(wrong, instance) == {"identity"}


@pytest.mark.parametrize("size", [99, 101])
def test_a_boundary_of_another_size_is_refused_either_way(make_instance, size):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    first = plan.boundaries[0].model_copy(update={"size_bytes": size})
    changed = plan.model_copy(update={"boundaries": (first, *plan.boundaries[1:])})
    assert kinds(changed, instance) == {"size"}


@pytest.mark.parametrize(
    ("letters", "needed"),
    [
        # Block (0, 3) has two beside boundary 0; nothing later is there yet.
        ("GRRGGGG", 500),
        # Block (3, 6) has two beside boundaries 0 and 3.
        ("GRRGRRG", 400),
        # Only what is kept: the blocks of one layer recompute nothing.
        ("GGGGGGG", 700),
        # Block (0, 4) has three beside boundary 0, more than the three kept at the end.
        ("GRRRGCG", 400),
        # The start of a block is there too: boundaries 0, 1 and two recomputed.
        ("GGRRCCG", 400),
    ],
)
def test_memory_over_time_is_counted_at_its_worst_moment(
    make_instance, letters, needed
):
    options = Options(transient=True, memory="profile")
    for missing, expected in ((0, set()), (1, {"budget"})):
        budget = Budget(gpu=needed - missing, cpu=300, nvme=0)
        instance = make_instance(budget_bytes=budget, options=options)
        plan = plan_of(instance, letters)
        assert check(plan, instance).used_bytes["gpu"] == needed
        assert kinds(plan, instance) == expected


def test_blocks_that_do_not_join_what_is_kept_are_refused(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GRRGRRG")
    longer = plan.blocks[0].model_copy(update={"end": 2})
    changed = plan.model_copy(update={"blocks": (longer, *plan.blocks[1:])})
    assert "path" in kinds(changed, instance)


def test_a_fused_block_is_refused(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GRRGRRG")
    fused = plan.blocks[0].model_copy(update={"mode": "fused"})
    changed = plan.model_copy(update={"blocks": (fused, *plan.blocks[1:])})
    assert kinds(changed, instance) == {"path"}
    assert "block (0, 3) is fused" in details(changed, instance)


def test_the_fixed_set_is_exact(make_instance):
    fixed = make_instance(fixed=Fixed(gpu=(0, 3, 6)), budget_bytes=ROOMY)
    assert kinds(plan_of(fixed, "GRRGRRG"), fixed) == set()
    assert kinds(plan_of(fixed, "GGRGRRG"), fixed) == {"fixed"}
    assert kinds(plan_of(fixed, "GRRCRRG"), fixed) == {"fixed"}


def test_the_objective_is_added_up_by_hand(make_instance):
    """Omitted 2, 3 and 5; block (1, 4) pays rho of layers 1 and 2, (4, 6) of 4."""
    instance = make_instance(
        rho_s=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        lambda_z_s=0.001,
        lambda_c_s=0.01,
        lambda_n_s=0.1,
        bandwidth=FAST,
    )
    report = check(plan_of(instance, "NCRRGRG"), instance)
    assert report.recompute_s == 2 + 4 + 16
    assert report.objective_s == pytest.approx(22 + 4 * 0.001 + 0.01 + 0.1, abs=1e-12)


@pytest.mark.parametrize("lie_s", [-0.5, -2e-6, 2e-6, 0.5])
def test_a_claim_off_by_two_millionths_is_refused(make_instance, lie_s):
    instance = make_instance()
    plan = plan_of(instance, "GGRRRCG")
    claimed = plan.solve.objective_s + lie_s
    how = plan.solve.model_copy(update={"objective_s": claimed})
    wrong = plan.model_copy(update={"solve": how})
    assert kinds(wrong, instance) == {"objective"}


def test_a_solved_plan_has_a_bound_and_a_gap(make_instance):
    instance = make_instance()
    plan = solve(instance)
    for field in ("bound_s", "gap"):
        how = plan.solve.model_copy(update={field: None})
        wrong = plan.model_copy(update={"solve": how})
        assert kinds(wrong, instance) == {"status"}
