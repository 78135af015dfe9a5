"""What a simulated step waits for, and what it holds at each moment, by hand."""

from __future__ import annotations

import pytest
from test_schedule_check import plan_of
from test_simulate_order import LAYERS, STEP, F, one

from lazytrain.schedule.heuristics import keep_all
from lazytrain.schedule.instance import Bandwidth, Budget, Costs, Execution
from lazytrain.schedule.memory import planned_bytes
from lazytrain.schedule.simulate import simulate, with_prediction


def test_time_in_a_links_queue_is_that_links(make_timed):
    """Reads of a second stand behind uploads of ten: all of it is the link's."""
    instance = make_timed(
        mandatory_h2d_bytes=(1000,) * LAYERS,
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=1e9, h2d=100, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    assert set(result.exposed_s) == {"h2d"}
    assert result.exposed_s["h2d"] == pytest.approx(result.step_s - STEP)
    assert result.exposed_s["h2d"] > 10 * LAYERS


def test_gradients_behind_the_last_compute_are_exposed(make_timed):
    instance = make_timed(
        mandatory_d2h_bytes=(100,) * LAYERS,
        bandwidth=Bandwidth(d2h=20, h2d=1e9, nvme_write=1, nvme_read=1),
        costs=Costs(turn_s=0.25),
    )
    result = simulate(keep_all(instance), instance)
    # Eight copies of 5 s begin with the first backward's end, seven of 3 s follow it.
    tail = LAYERS * 5.0 - (LAYERS - 1) * 3.0
    assert result.step_s == pytest.approx(STEP - 0.5 + tail)
    assert result.exposed_s == {"d2h": pytest.approx(tail)}
    assert result.compute_s == pytest.approx(STEP - 0.5)
    assert result.busy_s["d2h"] == pytest.approx(LAYERS * 5.0)


def level_at(result, moment):
    """Return the bytes in HBM just after a moment."""
    return [size for since, size in result.memory["gpu"] if since <= moment][-1]


def at(result, name):
    """Return the middle of a step's task."""
    task = one(result, name)
    return (task.start_s + task.end_s) / 2


def test_what_is_written_in_time_leaves_before_the_next_is_made(make_timed):
    """A write takes as long as a layer: never more than one waits, and the last one."""
    instance = make_timed(
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=100, h2d=1e9, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    turn = one(result, "loss").start_s
    forward = [size for since, size in result.memory["gpu"] if since < turn]
    assert max(forward) == 100


def test_a_boundary_is_held_until_it_is_written(make_timed):
    """Writes of 2 s: by the end of eight layers four of nine boundaries are gone."""
    instance = make_timed(
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=50, h2d=1e9, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    assert level_at(result, at(result, "loss")) == 500
    assert level_at(result, at(result, "forward 3")) == 300


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_boundary_is_held_from_its_read_to_the_end_of_its_block(make_timed, ahead):
    instance = make_timed(
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=1e9, h2d=1e9, nvme_write=1, nvme_read=1),
    )
    plan = keep_all(instance).model_copy(update={"read_ahead_blocks": ahead})
    result = simulate(plan, instance)
    for layer in range(LAYERS):
        # The block's own, and as many as are read ahead while any are left.
        held = 100 * (1 + min(ahead, layer))
        assert level_at(result, at(result, f"backward {layer}")) == held


def test_the_reserve_is_no_room_for_reading_ahead(make_timed):
    """Four blocks ahead fit; the reserve would hold the other four."""
    run = Execution(batch=1, seq_len=1, micro_batch=1, reserve_bytes=400)
    instance = make_timed(
        execution=run,
        fixed_bytes=Budget(gpu=1400, cpu=0, nvme=0),
        bandwidth=Bandwidth(d2h=1e9, h2d=10, nvme_write=1, nvme_read=1),
        budget_bytes=Budget(gpu=900, cpu=200, nvme=0),
    )
    plan = plan_of(instance, "CC" + "G" * (LAYERS - 1))
    far = plan.model_copy(update={"read_ahead_blocks": 8})
    assert simulate(far, instance).step_s < simulate(plan, instance).step_s - F
    held = planned_bytes(far, instance)["gpu"]
    for room, ahead in ((held, 8), (held - 1, 4), (held - 400, 4)):
        # What may be held is cap less reserve: 1000 of 1400, and the budget.
        budget = Budget(gpu=room - 1000, cpu=200, nvme=0)
        here = instance.model_copy(update={"budget_bytes": budget})
        assert with_prediction(plan, here).read_ahead_blocks == ahead
