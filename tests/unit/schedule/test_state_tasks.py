"""Optimizer state goes in and out around its updates, in units, by hand."""

from __future__ import annotations

import pytest
from test_schedule_check import plan_of

from lazytrain.schedule.instance import Costs
from lazytrain.schedule.plan import Gradient, OptimizerState, Part
from lazytrain.schedule.staging import UNIT_PARAMETERS
from lazytrain.schedule.state_tasks import StateTasks
from lazytrain.schedule.timeline import Timeline


@pytest.fixture
def make_tasks(make_instance):
    """Return a maker of state on disk: a second to read a unit, two to write it."""

    def make(home="nvme"):
        costs = Costs(
            state_read_s=1 / UNIT_PARAMETERS, state_write_s=2 / UNIT_PARAMETERS
        )
        instance = make_instance(costs=costs)
        part = Part(
            name="p",
            kind="layer",
            num_parameters=1,
            weight_bytes=0,
            weights="resident",
            gradient=Gradient(dtype="fp32", home="cpu"),
            optimizer_state=OptimizerState(home=home, format="fp32", master="fp32"),
        )
        plan = plan_of(instance, "GGGGGGG").model_copy(update={"parts": (part,)})
        line = Timeline()
        return StateTasks(plan, instance, line), line

    return make


def times(line, name):
    """Return start and end of all tasks of a name, in the order of adding."""
    return [(t.start_s, t.end_s) for t in line.tasks if t.name.startswith(name)]


def test_two_units_are_read_ahead_of_the_one_that_is_updated(make_tasks):
    """Updates of 5 s a unit set the pace; the disk writes a unit before it reads."""
    tasks, line = make_tasks()
    last = tasks.update("p", 5 * UNIT_PARAMETERS, 25.0, None, 0)
    line.run()
    assert times(line, "update p") == [(1 + 5 * k, 6 + 5 * k) for k in range(5)]
    # The fourth is read once the first is updated and on its way out.
    assert times(line, "state in") == [(0, 1), (1, 2), (2, 3), (8, 9), (13, 14)]
    assert times(line, "state out") == [(6 + 5 * k, 8 + 5 * k) for k in range(5)]
    assert line.tasks[last].name == "update p"
    assert line.tasks[last].end_s == 26.0


def test_a_unit_is_read_again_only_after_it_was_written(make_tasks):
    tasks, line = make_tasks()
    tasks.update("p", UNIT_PARAMETERS, 5.0, None, 0)
    tasks.update("p", UNIT_PARAMETERS, 5.0, None, 1)
    line.run()
    assert times(line, "state in") == [(0, 1), (8, 9)]
    assert times(line, "update p") == [(1, 6), (9, 14)]
    assert times(line, "state out") == [(6, 8), (14, 16)]


def test_an_update_waits_for_its_gradient_and_its_state(make_tasks):
    tasks, line = make_tasks()
    gradient = line.add("gradient", "d2h", 4.0)
    tasks.update("p", UNIT_PARAMETERS, 5.0, gradient, 0)
    line.run()
    # The state is there by then; a last unit may be a small one.
    assert times(line, "state in") == [(0, 1)]
    assert times(line, "update p") == [(4, 9)]


def test_state_on_the_host_moves_nothing(make_tasks):
    tasks, line = make_tasks(home="cpu")
    tasks.update("p", 3 * UNIT_PARAMETERS, 5.0, None, 0)
    line.run()
    assert times(line, "") == [(0, 5)]
