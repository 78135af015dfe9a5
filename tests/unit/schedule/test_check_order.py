"""Faults planted in batch-major plans, and in how any batch is cut, are caught."""

from __future__ import annotations

import pytest

from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
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
