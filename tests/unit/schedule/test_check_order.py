"""Faults planted in batch-major plans, and in how any batch is cut, are caught."""

from __future__ import annotations

import pytest
from test_schedule_check import plan_of

from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Budget
from lazytrain.schedule.memory import planned_bytes
from lazytrain.schedule.plan import Home, Transfer
from lazytrain.schedule.solve import solve


@pytest.fixture
def sound(hardware, compiled, make_row, make_ordered):
    """Return a batch-major instance whose levels fill the device, and its plan."""
    config = make_ordered("batch-major", "40MiB")
    instance = derive_instance(hardware, compiled, make_row(), config)
    plan = solve(instance)
    levels = set(plan.groups[0].save_level)
    assert levels == {"inputs", "all"}
    assert check(plan, instance).violations == ()
    return instance, plan


def faults(plan, instance):
    """Return the kinds of violation that the replay finds."""
    return {violation.kind for violation in check(plan, instance).violations}


def with_group(plan, **changes):
    """Return the plan with its group changed."""
    return plan.model_copy(
        update={"groups": (plan.groups[0].model_copy(update=changes),)}
    )


def with_part(plan, index, **changes):
    """Return the plan with one part changed."""
    parts = list(plan.parts)
    parts[index] = parts[index].model_copy(update=changes)
    return plan.model_copy(update={"parts": tuple(parts)})


def test_one_layer_kept_too_much_is_caught(sound):
    instance, plan = sound
    levels = list(plan.groups[0].save_level)
    levels[levels.index("inputs")] = "all"
    assert faults(with_group(plan, save_level=tuple(levels)), instance) == {"levels"}
    levels[0] = "keep-0.9"
    assert "levels" in faults(with_group(plan, save_level=tuple(levels)), instance)


def test_levels_that_fill_the_budget_to_the_byte_pass(sound):
    instance, plan = sound
    spare = (
        instance.fixed_bytes.gpu
        + instance.budget_bytes.gpu
        - planned_bytes(plan, instance)["gpu"]
    )
    for less, kinds in ((spare, set()), (spare + 1, {"levels"})):
        budget = instance.budget_bytes
        smaller = budget.model_copy(update={"gpu": budget.gpu - less})
        changed = instance.model_copy(update={"budget_bytes": smaller})
        copied = plan.model_copy(update={"instance_sha256": changed.sha256})
        assert faults(copied, changed) == kinds


@pytest.mark.parametrize("index", [0, 1, -1])
def test_sums_off_the_device_are_caught(sound, index):
    instance, plan = sound
    gradient = plan.parts[index].gradient.model_copy(update={"home": "cpu"})
    assert faults(with_part(plan, index, gradient=gradient), instance) == {"parts"}


def test_streamed_weights_and_another_cut_are_caught(sound):
    instance, plan = sound
    assert faults(with_part(plan, 1, weights="streamed"), instance) == {"parts"}
    assert faults(with_group(plan, order="layer-major"), instance) == {"order"}
    assert faults(with_group(plan, micro_batch=16), instance) == {"order"}


def test_boundaries_that_leave_the_device_are_caught(sound):
    instance, plan = sound
    moved = plan.boundaries[1].model_copy(update={"home": Home.CPU})
    places = (plan.boundaries[0], moved, *plan.boundaries[2:])
    away = plan.model_copy(update={"boundaries": places})
    assert {"budget", "transfer"} <= faults(away, instance)
    copy = Transfer(
        boundary=1,
        link="d2h",
        release="forward:1",
        deadline="turn",
        window_bytes={1: float(instance.boundary_bytes[1])},
    )
    sent = plan.model_copy(update={"transfers": (copy,)})
    assert "transfer" in faults(sent, instance)


def test_a_layer_major_plan_in_waves_is_caught(
    hardware, layers, make_row, make_ordered
):
    config = make_ordered("layer-major", "1GiB")
    instance = derive_instance(hardware, layers, make_row(), config)
    plan = solve(instance)
    assert faults(plan, instance) == set()
    assert faults(with_group(plan, order="batch-major"), instance) == {"order"}


MENU = (
    {"name": "inputs", "kept_bytes": 0, "step_s": 2.0},
    {"name": "all", "kept_bytes": 1, "step_s": 1.0},
)


@pytest.fixture
def offloading(make_instance):
    """Return a derived instance of two host boundaries; its fixed bytes have 5 states.

    HBM has room for a boundary that waits, and for one beyond what is fixed.
    """
    run = {"batch": 2, "seq_len": 8, "micro_batch": 2, "master": "fp32"}
    return make_instance(
        execution=run,
        fixed_bytes={"gpu": 1000, "cpu": 0, "nvme": 0},
        bandwidth={"d2h": 1e6, "h2d": 1e6, "nvme_write": 1e6, "nvme_read": 1e6},
        budget_bytes={"gpu": 200, "cpu": 900, "nvme": 900},
        levels={"layer": MENU},
    )


@pytest.mark.parametrize(
    ("letters", "ahead", "states"),
    [
        # Kept, and the gradient; less the five that are fixed. Nothing passes.
        ("GGGGGGG", 2, 7 + 1 - 5),
        # Blocks of one layer: two read ahead, one in use, one on its way.
        ("GCCGGGG", 2, 5 + 4 + 1 - 5),
        ("GNNGGGG", 2, 5 + 4 + 1 - 5),
        # Six read ahead instead of two.
        ("GCCGGGG", 6, 5 + 8 + 1 - 5),
        # The longest block has three layers; nothing is read ahead.
        ("GRRGGGG", 2, 5 + 3 + 1 - 5),
        # One layer is replayed: never fewer than three buffers.
        ("GRGGGGG", 2, 6 + 3 + 1 - 5),
        # Both: three layers, and two read ahead with one in use.
        ("GRRGGCG", 2, 4 + 6 + 1 - 5),
    ],
)
def test_hidden_states_on_their_way_are_counted_by_hand(
    offloading, letters, ahead, states
):
    """With one byte of a save level kept, and exactly as much room as is needed."""
    for missing, expected in ((0, set()), (1, {"levels"})):
        budget = offloading.budget_bytes
        room = max(0, states * 100 + 1 - missing)
        exact = budget.model_copy(update={"gpu": room})
        instance = offloading.model_copy(update={"budget_bytes": exact})
        plan = plan_of(instance, letters)
        levels = ("all", *["inputs"] * 5)
        plan = with_group(plan, save_level=levels)
        plan = plan.model_copy(update={"read_ahead_blocks": ahead})
        assert faults(plan, instance) - {"budget"} == expected


def test_without_other_tiers_three_states_are_fixed(offloading):
    for missing, expected in ((0, set()), (1, {"levels"})):
        # Five kept, three that pass, the gradient; less three: 6 states and a byte.
        alone = offloading.model_copy(
            update={"budget_bytes": Budget(gpu=601 - missing, cpu=99, nvme=99)}
        )
        plan = with_group(
            plan_of(alone, "GRRGGGG"), save_level=("all", *["inputs"] * 5)
        )
        assert faults(plan, alone) == expected


def test_boundaries_read_too_far_ahead_are_caught_without_any_level(offloading):
    plan = plan_of(offloading, "GCCCCCG")
    assert faults(plan, offloading) == set()
    for ahead, expected in ((3, set()), (4, {"levels"})):
        # Two kept and ahead + 2 that pass, and one more; less five: ahead states.
        room = offloading.budget_bytes.model_copy(update={"gpu": 300})
        instance = offloading.model_copy(update={"budget_bytes": room})
        plan = plan_of(instance, "GCCCCCG")
        far = plan.model_copy(update={"read_ahead_blocks": ahead})
        assert faults(far, instance) == expected
