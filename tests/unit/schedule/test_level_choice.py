"""Spare HBM goes to the save levels that save most seconds a byte, by hand."""

from __future__ import annotations

from test_schedule_check import plan_of

from lazytrain.schedule.instance import Budget, Execution, LevelCost
from lazytrain.schedule.levels import choose_levels, spare_bytes


def menu(*levels):
    """Return a menu of (name, bytes, seconds)."""
    return tuple(
        LevelCost(name=name, kept_bytes=size, step_s=seconds)
        for name, size, seconds in levels
    )


def test_the_reserve_is_not_spare(make_instance):
    run = Execution(batch=1, seq_len=1, micro_batch=1, reserve_bytes=400)
    instance = make_instance(
        execution=run,
        fixed_bytes=Budget(gpu=1000, cpu=0, nvme=0),
        budget_bytes=Budget(gpu=900, cpu=900, nvme=0),
    )
    # Seven kept and the gradient's, less the five that are fixed.
    assert spare_bytes(plan_of(instance, "GGGGGGG"), instance) == 900 - 300


def test_a_layer_is_raised_by_its_best_ratio_first(make_instance):
    """`mid` saves 0.2 s a byte, `all` 0.09: two cheap raises before one dear one."""
    levels = {"layer": menu(("inputs", 0, 10.0), ("mid", 10, 8.0), ("all", 100, 1.0))}
    instance = make_instance(layers=2, levels=levels)
    assert choose_levels(instance, 9) == ("inputs", "inputs")
    assert choose_levels(instance, 100) == ("mid", "mid")
    assert choose_levels(instance, 110) == ("mid", "all")
    assert choose_levels(instance, 199) == ("mid", "all")
    assert choose_levels(instance, 200) == ("all", "all")


def test_the_layer_that_saves_most_a_byte_is_raised_first(make_instance):
    levels = {
        "dear": menu(("inputs", 0, 9.0), ("all", 100, 1.0)),
        "cheap": menu(("inputs", 0, 9.0), ("all", 100, 7.0)),
    }
    kinds = ("cheap", "dear", "cheap", "dear")
    instance = make_instance(layers=4, layer_types=kinds, levels=levels)
    raised = [
        [i for i, level in enumerate(choose_levels(instance, spare)) if level == "all"]
        for spare in (99, 100, 200, 300, 400)
    ]
    # Of equal ones the last, whose tensors are held for the shortest time.
    assert raised == [[], [3], [1, 3], [1, 2, 3], [0, 1, 2, 3]]


def test_a_level_that_saves_nothing_is_not_kept(make_instance):
    levels = {"layer": menu(("inputs", 0, 9.0), ("waste", 10, 9.0), ("all", 50, 8.0))}
    instance = make_instance(layers=1, levels=levels)
    assert choose_levels(instance, 40) == ("inputs",)
    assert choose_levels(instance, 50) == ("all",)
