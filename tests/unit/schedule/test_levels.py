"""Spare HBM goes to save levels, last layers first, and never beyond the budget."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.schedule.instance import Execution, LevelCost
from lazytrain.schedule.levels import choose_levels


class Problem:
    """What choose_levels reads of an instance."""

    def __init__(self, menus, kinds):
        self.levels = menus
        self.layer_types = tuple(kinds)
        self.layers = len(kinds)
        self.execution = Execution(batch=1, seq_len=1, micro_batch=1)


def menu(*pairs):
    return tuple(
        LevelCost(name=f"l{i}", kept_bytes=size, step_s=seconds)
        for i, (size, seconds) in enumerate(pairs)
    )


def cost(problem, levels):
    """Bytes and seconds of an assignment."""
    size = seconds = 0
    for kind, name in zip(problem.layer_types, levels, strict=True):
        chosen = {level.name: level for level in problem.levels[kind]}[name]
        size += chosen.kept_bytes
        seconds += chosen.step_s
    return size, seconds


def test_last_layers_are_raised_first():
    problem = Problem({"a": menu((0, 10.0), (5, 9.0))}, "aaaa")
    assert choose_levels(problem, 11) == ("l0", "l0", "l1", "l1")


def test_nothing_is_spared_for_a_level_that_gains_nothing():
    problem = Problem({"a": menu((0, 10.0), (5, 10.0))}, "aa")
    assert choose_levels(problem, 100) == ("l0", "l0")


def test_a_layer_type_without_menu_keeps_the_base_level():
    problem = Problem({"a": menu((0, 10.0), (5, 9.0))}, "ab")
    assert choose_levels(problem, 100) == ("l1", "inputs")


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    gains=st.lists(st.integers(1, 9), min_size=2, max_size=2),
    spare=st.integers(0, 60),
    kinds=st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
)
def test_never_over_budget_and_close_to_brute_force(sizes, gains, spare, kinds):
    """Greedy by density loses at most one upgrade to the best assignment."""
    problem = Problem(
        {
            "a": menu((0, 20.0), (sizes[0], 20.0 - gains[0])),
            "b": menu((0, 30.0), (sizes[-1], 30.0 - gains[1])),
        },
        kinds,
    )
    got = cost(problem, choose_levels(problem, spare))
    assert got[0] <= spare
    best = min(
        seconds
        for names in itertools.product(("l0", "l1"), repeat=len(kinds))
        for size, seconds in [cost(problem, names)]
        if size <= spare
    )
    assert got[1] - best <= max(gains)
    if spare >= max(sizes) * len(kinds):
        assert got[1] == pytest.approx(best)
