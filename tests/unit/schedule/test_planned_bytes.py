"""What a plan's buffers take in each tier beside what is fixed, added up by hand."""

from __future__ import annotations

import pytest
from test_schedule_check import plan_of

from lazytrain.schedule.instance import Budget, Execution, PartSpec
from lazytrain.schedule.memory import (
    ModelSizes,
    device_bytes,
    host_bytes,
    planned_bytes,
)

FIXED = Budget(gpu=5000, cpu=3000, nvme=70)


@pytest.mark.parametrize(
    ("letters", "nvme", "expected"),
    [
        # Seven kept and the gradient's, of which five are fixed where tiers are.
        ("GGGGGGG", 900, (4000 + 300, 3000 - 300, 70)),
        # Without room for one on the disk nothing bounces, and nothing is given back.
        ("GGGGGGG", 99, (4000 + 300, 3000, 70)),
        # Two in DRAM: four buffers for what passes.
        ("GCCGGGG", 900, (4000 + 500, 3000 - 300 + 200, 70)),
        ("GCCGGGG", 99, (4000 + 500, 3000 + 200, 70)),
        # One on the disk: the bounce buffers are in use.
        ("GNCGGGG", 900, (4000 + 500, 3000 + 100, 170)),
    ],
)
def test_buffers_are_added_to_what_is_fixed(make_instance, letters, nvme, expected):
    run = Execution(batch=1, seq_len=1, micro_batch=1, reserve_bytes=1000)
    instance = make_instance(
        execution=run,
        fixed_bytes=FIXED,
        budget_bytes=Budget(gpu=900, cpu=900, nvme=nvme),
    )
    held = planned_bytes(plan_of(instance, letters), instance)
    assert (held["gpu"], held["cpu"], held["nvme"]) == expected


def test_three_states_are_fixed_where_nothing_leaves_the_device(make_instance):
    instance = make_instance(
        execution=Execution(batch=1, seq_len=1, micro_batch=1),
        fixed_bytes=FIXED,
        budget_bytes=Budget(gpu=900, cpu=99, nvme=99),
    )
    # Five kept, three that pass for two recomputed ones, and the gradient's.
    held = planned_bytes(plan_of(instance, "GRRGGGG"), instance)
    assert held["gpu"] == 5000 + (5 + 3 + 1 - 3) * 100


def part(name, kind, parameters, weight, gradient):
    """Return a part with sizes that tell which of them was counted."""
    return PartSpec(
        name=name,
        kind=kind,
        num_parameters=parameters,
        weight_bytes=weight,
        gradient_bytes=gradient,
    )


PARTS = (
    part("embedding", "embedding", 50, 100, 10),
    part("layer.0", "layer", 20, 40, 4),
    part("layer.1", "layer", 30, 60, 6),
    part("head", "head", 70, 140, 14),
)
SIZES = ModelSizes(hidden=8, vocab=16, itemsize=2, workspace_bytes=999)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Slots are as large as the largest layer, and no more than there are layers.
        ({"weight_slots": 1, "prefetch_distance": 0}, {"weight_slots": 60}),
        ({"weight_slots": 2}, {"weight_slots": 120}),
        ({"weight_slots": 9}, {"weight_slots": 120}),
        ({"weight_slots": 1, "resident_weights": True}, {"weight_slots": 120}),
        # Batch-major, each layer lies in bytes of its own, and so does each sum.
        (
            {"order": "batch-major", "micro_batch": 2},
            {"weight_slots": 100, "gradient_accumulator": 200, "end_gradient": 480},
        ),
        # One wave drains a part before the next one's sum begins.
        (
            {"order": "batch-major", "micro_batch": 4},
            {"weight_slots": 100, "gradient_accumulator": 120, "end_gradient": 280},
        ),
        ({}, {"gradient_accumulator": 120, "end_gradient": 280, "ends": 240}),
        ({"grad_slots": 3}, {"grad_slots": 18, "waiting_gradients": 0}),
        ({"gradient_drain": "as-consumed"}, {"waiting_gradients": 10}),
        # Logits and their gradient, of no more tokens than there are.
        ({"loss_chunk_tokens": 3}, {"loss_chunk": 2 * 3 * 16 * 2}),
        ({"loss_chunk_tokens": 10**6}, {"loss_chunk": 2 * 20 * 16 * 2}),
        ({"reserve_bytes": 7}, {"reserve": 7, "layer_workspace": 999}),
        # A hidden state has 4 x 5 x 8 x 2 bytes, of a wave of two half of that.
        ({}, {"working_hidden": 640, "transit": 960}),
        (
            {"order": "batch-major", "micro_batch": 2},
            {"working_hidden": 320, "transit": 480},
        ),
    ],
    ids=str,
)
def test_each_cause_on_the_device_is_counted_by_hand(changes, expected):
    values = {"batch": 4, "seq_len": 5, "micro_batch": 4} | changes
    held = device_bytes(PARTS, Execution(**values), SIZES, offloads=True)
    assert {name: getattr(held, name) for name in expected} == expected
    assert held.total == sum(vars(held).values())


def test_one_state_passes_where_no_other_tier_takes_any():
    run = Execution(batch=4, seq_len=5, micro_batch=4)
    assert device_bytes(PARTS, run, SIZES, offloads=False).transit == 320


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"weights": 340, "gradients": 34, "bounce": 0, "state_staging": 0}),
        # Ends', and two buffers of the largest layer's.
        ({"gradient_drain": "as-consumed"}, {"gradients": 24 + 12}),
        ({"master": "fp32-split"}, {"master_remainder": 340}),
        ({"master": "bf16"}, {"master_remainder": 0}),
        ({"master": "fp32"}, {"master_remainder": 0}),
        ({"optimizer": "adamw"}, {"optimizer_state": 170 * 8}),
        ({"optimizer": "cpu_adamw_8bit"}, {"optimizer_state": 340}),
        ({"eight_bit_fraction": 0.5}, {"optimizer_state": int(170 * 5 + 0.166)}),
        # What is on disk has neither state nor remainder in memory, but staging.
        (
            {"state_on_nvme": ("head",), "optimizer": "adamw"},
            {
                "optimizer_state": 100 * 8,
                "master_remainder": 200,
                "state_staging": 4 * 70 * 10,
            },
        ),
    ],
    ids=str,
)
def test_each_cause_on_the_host_is_counted_by_hand(changes, expected):
    values = {"batch": 4, "seq_len": 5, "micro_batch": 4} | changes
    held = host_bytes(PARTS, Execution(**values))
    assert {name: getattr(held, name) for name in expected} == expected
    assert held.total == sum(vars(held).values())
    assert host_bytes(PARTS, Execution(**values), 11).bounce == 33
