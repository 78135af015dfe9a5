"""A plan that takes other memory than its instance counted is refused, in any order."""

import pytest

from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.solve import solve


@pytest.fixture(params=["layer-major", "batch-major"])
def sound(request, hardware, layers, make_row, make_ordered):
    """Return an instance and its plan, which the checker accepts."""
    config = make_ordered(request.param)
    instance = derive_instance(hardware, layers, make_row(), config)
    plan = solve(instance)
    assert check(plan, instance).violations == ()
    return instance, plan


def faults(sound, **changes):
    """Return the kinds of violation of a changed plan."""
    instance, plan = sound
    changed = plan.model_copy(update=changes)
    return {violation.kind for violation in check(changed, instance).violations}


@pytest.mark.parametrize(
    "changes",
    [
        {"grad_slots": 50},
        {"weight_slots": 50},
        {"prefetch_distance": 7},
        {"loss_chunk_tokens": 10**6},
        {"chunk_bytes": 2**40},
        {"reserve_bytes": 1},
        {"optimizer_threads": 99},
    ],
)
def test_another_setting_is_refused(sound, changes):
    assert faults(sound, **changes) == {"execution"}


def test_missing_and_doubled_parts_are_refused(sound):
    _, plan = sound
    assert "parts" in faults(sound, parts=())
    assert "parts" in faults(sound, parts=plan.parts[:-1])
    assert faults(sound, update_order=()) == {"parts"}
    assert faults(sound, update_order=plan.update_order[:1] * 2) == {"parts"}


def test_parts_in_another_place_are_refused(sound):
    _, plan = sound
    first, second, *rest = plan.parts
    assert "parts" in faults(sound, parts=(second, first, *rest))
    other = second.model_copy(update={"name": "layer.99"})
    parts = (first, other, *rest)
    names = tuple(part.name for part in parts)
    assert faults(sound, parts=parts, update_order=names) == {"parts"}


def test_another_body_is_refused(sound):
    _, plan = sound
    other = plan.templates[0].model_copy(update={"body": "liger"})
    assert faults(sound, templates=(other, *plan.templates[1:])) == {"execution"}


@pytest.mark.parametrize("index", [0, -1])
def test_the_ends_gradients_are_drained_at_once(
    hardware, layers, make_row, make_config, index
):
    """Even where the layers' wait in HBM: no third buffer is counted for the ends."""
    config = make_config("64MiB")
    settings = config.accelerators["cpu"]
    executor = settings.executor.model_copy(update={"gradient_drain": "as-consumed"})
    changed = {"cpu": settings.model_copy(update={"executor": executor})}
    config = config.model_copy(update={"accelerators": changed})
    instance = derive_instance(hardware, layers, make_row(), config)
    plan = solve(instance)
    drains = {part.kind: part.gradient.drain for part in plan.parts}
    assert drains == {"embedding": "whole", "layer": "as-consumed", "head": "whole"}
    assert check(plan, instance).violations == ()
    parts = list(plan.parts)
    gradient = parts[index].gradient.model_copy(update={"drain": "as-consumed"})
    parts[index] = parts[index].model_copy(update={"gradient": gradient})
    assert faults((instance, plan), parts=tuple(parts)) == {"parts"}


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("", {"weights": "streamed"}),
        ("", {"weights": "resident"}),
        ("", {"num_parameters": 1}),
        ("", {"weight_bytes": 1}),
        ("", {"kind": "head"}),
        ("", {"layer_type": "other"}),
        ("", {"tied_to": "embedding"}),
        ("", {"optimizer": "gpu"}),
        ("gradient", {"drain": "as-consumed"}),
        ("gradient", {"home": "gpu"}),
        ("gradient", {"home": "cpu"}),
        ("gradient", {"dtype": "bf16"}),
        ("optimizer_state", {"home": "nvme"}),
        ("optimizer_state", {"format": "8bit"}),
        ("optimizer_state", {"master": "bf16"}),
        ("optimizer_state", {"eight_bit_fraction": 0.9}),
    ],
)
def test_a_part_held_in_another_way_is_refused(sound, where, changes):
    _, plan = sound
    part = plan.parts[1]
    inner = getattr(part, where).model_copy(update=changes) if where else None
    changed = part.model_copy(update={where: inner} if where else changes)
    if changed == part:
        return  # the very plan
    parts = (plan.parts[0], changed, *plan.parts[2:])
    assert faults(sound, parts=parts) == {"parts"}


def test_another_cut_of_the_batch_is_refused(sound):
    _, plan = sound
    group = plan.groups[0]
    other = "layer-major" if group.order == "batch-major" else "batch-major"
    for changes in ({"order": other}, {"micro_batch": group.micro_batch * 2}):
        one = group.model_copy(update=changes)
        assert "order" in faults(sound, groups=(one,))
    half = group.model_copy(update={"sequences": group.sequences // 2})
    assert "order" in faults(sound, groups=(half, half))


def test_a_level_that_nobody_measured_is_refused(sound):
    _, plan = sound
    group = plan.groups[0]
    levels = ("all",) * len(group.save_level)
    kept = group.model_copy(update={"save_level": levels})
    assert faults(sound, groups=(kept,)) == {"levels"}
