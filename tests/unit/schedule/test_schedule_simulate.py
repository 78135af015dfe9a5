"""The simulator against step times derived by hand, on plans without contention."""

from __future__ import annotations

import json

import pytest

from lazytrain.schedule.heuristics import fixed_interval, keep_all, recompute_all
from lazytrain.schedule.instance import Bandwidth, Budget, Costs, Execution, PartSpec
from lazytrain.schedule.plan import Home
from lazytrain.schedule.simulate import simulate, timed_step_s, with_prediction
from lazytrain.schedule.solve import solve
from lazytrain.schedule.timeline import Timeline
from lazytrain.schedule.trace import write_gantt, write_trace

LAYERS = 8
F, B = 1.0, 3.0


@pytest.fixture
def make_timed(make_instance):
    """Return a maker of eight-layer instances: 1 s forward, 3 s backward, no links."""

    def make(**changes):
        values = {
            "rho_s": (F,) * LAYERS,
            "window_write_s": (F,) * LAYERS,
            "window_read_s": (B,) * LAYERS,
            "budget_bytes": Budget(gpu=900, cpu=0, nvme=0),
            "costs": Costs(embedding_s=0.5, turn_s=0.25),
        }
        return make_instance(layers=LAYERS, **values | changes)

    return make


STEP = 0.5 + LAYERS * F + 0.25 + LAYERS * B


def test_keep_all_is_forward_and_backward(make_timed):
    instance = make_timed()
    result = simulate(keep_all(instance), instance)
    assert result.step_s == pytest.approx(STEP)
    assert sum(result.exposed_s.values()) == 0
    assert result.peak_bytes == {"gpu": 900, "cpu": 0, "nvme": 0}


def test_recompute_all_adds_all_but_one_forward(make_timed):
    instance = make_timed()
    result = simulate(recompute_all(instance), instance)
    assert result.step_s == pytest.approx(STEP + (LAYERS - 1) * F)
    # Boundary 0 and seven recomputed ones are alive before layer 7 goes back.
    assert result.peak_bytes["gpu"] == 800


@pytest.mark.parametrize("every", [2, 4])
def test_interval_adds_every_minus_one_forwards_per_block(make_timed, every):
    instance = make_timed()
    result = simulate(fixed_interval(instance, every), instance)
    replays = LAYERS // every * (every - 1)
    assert result.step_s == pytest.approx(STEP + replays * F)
    # At the last block's backward: all checkpoints but L, and its own interior.
    assert result.peak_bytes["gpu"] == 100 * (LAYERS // every + every - 1)


def test_fast_offload_is_free(make_timed):
    instance = make_timed(
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=200, h2d=100, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    # Only the first read cannot hide: it begins with the loss, which lasts 0.25 s.
    assert result.step_s == pytest.approx(STEP + 100 / 100 - 0.25)
    assert result.exposed_s == {"h2d": pytest.approx(0.75)}
    assert result.peak_bytes["cpu"] == 800


def test_slow_reads_set_the_pace(make_timed):
    instance = make_timed(
        budget_bytes=Budget(gpu=100, cpu=800, nvme=0),
        bandwidth=Bandwidth(d2h=200, h2d=20, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    # Eight reads of 5 s from the turn on, then one backward and the embedding's.
    expected = 0.25 + LAYERS * F + LAYERS * 5.0 + B + 0.25
    assert result.step_s == pytest.approx(expected)
    assert sum(result.exposed_s.values()) == pytest.approx(result.step_s - STEP)


def test_streamed_weights_bound_a_step_with_little_compute(make_timed):
    instance = make_timed(
        mandatory_h2d_bytes=(1000,) * LAYERS,
        bandwidth=Bandwidth(d2h=1e9, h2d=100, nvme_write=1, nvme_read=1),
    )
    result = simulate(keep_all(instance), instance)
    # The layer at the turn stays in its slot: 15 uploads of 10 s; the backward of
    # layer 0 and the embedding's follow the last. What the next step's first uploads
    # could start early, they do: the ring holds two ahead.
    assert result.busy_s["h2d"] == pytest.approx(150.0)
    assert result.step_s >= 150.0
    assert result.step_s <= 150.0 + F + B + 0.75


def updated_layers(num_parameters, gradient_bytes=0):
    """Return parts of layers that are updated and whose weights move nowhere."""
    return tuple(
        PartSpec(
            name=f"layer.{j}",
            kind="layer",
            num_parameters=num_parameters,
            weight_bytes=0,
            gradient_bytes=gradient_bytes,
        )
        for j in range(LAYERS)
    )


def test_updates_overlap_the_next_forward(make_timed):
    parts = updated_layers(20)
    slow = make_timed(
        parts=parts, costs=Costs(optimizer_parameters_per_s=10.0, turn_s=0.25)
    )
    result = simulate(keep_all(slow), slow)
    # Updates of 2 s gate forwards of 1 s: the last forward ends 1 s after the last.
    assert result.step_s == pytest.approx(LAYERS * 2.0 + F + 0.25 + LAYERS * B)
    assert result.exposed_s == {"optimizer": pytest.approx(LAYERS * 2.0 + F - 8 * F)}
    fast = make_timed(
        parts=parts, costs=Costs(optimizer_parameters_per_s=40.0, turn_s=0.25)
    )
    # Updates of 0.5 s hide but for the first.
    assert simulate(keep_all(fast), fast).step_s == pytest.approx(STEP - 0.5 + 0.5)


@pytest.mark.parametrize(("rate", "steady"), [(10.0, 41.25), (40.0, 32.75)])
def test_steps_timed_from_rest_to_rest_hold_one_whole_update(make_timed, rate, steady):
    parts = updated_layers(20)
    instance = make_timed(
        parts=parts, costs=Costs(optimizer_parameters_per_s=rate, turn_s=0.25)
    )
    plan = keep_all(instance)
    assert simulate(plan, instance).step_s == pytest.approx(steady)
    # The first step waits for no update; nobody waits for the last one but the clock.
    compute, update = LAYERS * (F + B) + 0.25, LAYERS * 20 / rate
    for steps in (1, 3):
        whole = compute + (steps - 1) * steady + update
        found = timed_step_s(plan, instance, steps)
        assert found == pytest.approx(whole / steps)


def test_nvme_boundaries_cross_two_links(make_timed):
    instance = make_timed(
        budget_bytes=Budget(gpu=800, cpu=0, nvme=100),
        bandwidth=Bandwidth(d2h=100, h2d=100, nvme_write=100, nvme_read=4),
    )
    plan = keep_all(instance)
    assert plan.homes.count(Home.NVME) == 1
    result = simulate(plan, instance)
    assert result.busy_s["nvme_read"] == pytest.approx(25.0)
    assert result.peak_bytes["nvme"] == 100


def test_longer_read_ahead_is_chosen_where_it_pays(make_timed):
    instance = make_timed(
        budget_bytes=Budget(gpu=700, cpu=0, nvme=200),
        bandwidth=Bandwidth(d2h=1e6, h2d=1e6, nvme_write=1e6, nvme_read=10),
    )
    plan = solve(instance)
    assert plan.homes[:2] == (Home.NVME, Home.NVME)
    assert plan.read_ahead_blocks > 2
    short = plan.model_copy(update={"read_ahead_blocks": 2})
    assert plan.prediction.step_s < simulate(short, instance).step_s
    assert plan.prediction.peak_bytes["gpu"] <= 700
    assert with_prediction(plan, instance) == plan


def test_fixed_bytes_are_the_floor_of_the_memory_curve(make_timed):
    run = Execution(batch=1, seq_len=1, micro_batch=1, reserve_bytes=1000)
    instance = make_timed(fixed_bytes=Budget(gpu=5000, cpu=70, nvme=0), execution=run)
    result = simulate(keep_all(instance), instance)
    assert result.memory["gpu"][0] == (0.0, 4000)
    assert result.memory["gpu"][-1][1] == 4000
    assert result.peak_bytes == {"gpu": 4900, "cpu": 70, "nvme": 0}


def test_timeline_serves_by_priority_then_order():
    line = Timeline()
    first = line.add("first", "link", 1.0, priority=1)
    low = line.add("low", "link", 1.0, priority=1)
    high = line.add("high", "link", 2.0, priority=0, after=(first,))
    line.run()
    assert [line.tasks[i].start_s for i in (first, high, low)] == [0.0, 1.0, 3.0]
    with pytest.raises(ValueError, match="depends on a later one"):
        line.add("wrong", "link", 1.0, after=(9,))


def test_trace_and_gantt_are_written(make_timed, tmp_path):
    instance = make_timed()
    plan = fixed_interval(instance, 4)
    result = simulate(plan, instance)
    write_trace(result, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spent = sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == 0)
    assert spent == pytest.approx(result.compute_s * 1e6)
    for name in ("a.svg", "b.svg"):
        write_gantt(result, plan, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
