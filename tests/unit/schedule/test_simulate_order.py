"""When each task of a simulated step may begin, derived by hand task by task."""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_schedule_check import plan_of
from test_schedule_simulate import updated_layers

from lazytrain.schedule.heuristics import fixed_interval, keep_all
from lazytrain.schedule.instance import Bandwidth, Budget, Costs, Execution
from lazytrain.schedule.plan import Home
from lazytrain.schedule.simulate import simulate, with_prediction
from lazytrain.units import MIB

LAYERS = 8
F, B = 1.0, 3.0
# Of `make_timed`: forward and backward of eight layers, embedding and loss.
STEP = 0.5 + LAYERS * F + 0.25 + LAYERS * B


def tasks_of(result, name):
    """Return a step's tasks of one name, those of the steady step only."""
    step = next(task.step for task in result.tasks if task.name == "loss")
    return [task for task in result.tasks if (task.name, task.step) == (name, step)]


def one(result, name):
    """Return the only task of one name."""
    (task,) = tasks_of(result, name)
    return task


@pytest.mark.parametrize("coupling", ["independent", "gds"])
def test_a_boundary_reaches_the_disk_after_the_host_or_beside_it(make_timed, coupling):
    instance = make_timed(
        budget_bytes=Budget(gpu=800, cpu=0, nvme=100),
        bandwidth=Bandwidth(d2h=100, h2d=100, nvme_write=50, nvme_read=100),
        options={"nvme_coupling": coupling},
    )
    plan = keep_all(instance)
    (away,) = [i for i, home in enumerate(plan.homes) if home == Home.NVME]
    result = simulate(plan, instance)
    write, spill = one(result, f"write {away}"), one(result, f"spill {away}")
    made = one(result, f"forward {away - 1}").end_s
    assert write.start_s == made
    assert write.end_s - write.start_s == pytest.approx(1.0)
    assert spill.start_s == (made if coupling == "gds" else write.end_s)
    assert spill.end_s - spill.start_s == pytest.approx(2.0)
    # On the way back the disk comes first, and nothing before it is written.
    load, read = one(result, f"load {away}"), one(result, f"read {away}")
    assert load.start_s >= spill.end_s
    assert read.start_s == load.end_s


@pytest.fixture
def large(make_timed):
    """Return boundaries of 3 MiB that all but the last wait on the host, in chunks."""
    size = 3 * MIB
    run = Execution(batch=1, seq_len=1, micro_batch=1, chunk_bytes=MIB)
    return make_timed(
        boundary_bytes=(size,) * (LAYERS + 1),
        budget_bytes=Budget(gpu=size, cpu=LAYERS * size, nvme=0),
        bandwidth=Bandwidth(d2h=4 * MIB, h2d=MIB, nvme_write=1, nvme_read=1),
        mandatory_h2d_bytes=(MIB,) * LAYERS,
        execution=run,
    )


def test_chunks_of_a_boundary_wait_for_it_and_for_each_other(large):
    result = simulate(keep_all(large), large)
    for i in range(1, LAYERS):
        made = one(result, f"forward {i - 1}").end_s
        chunks = tasks_of(result, f"write {i}")
        assert [chunk.end_s - chunk.start_s for chunk in chunks] == [0.25] * 3
        starts = [chunk.start_s for chunk in chunks]
        assert starts == sorted(starts)
        assert starts[0] >= made


def test_weights_go_ahead_of_activations_on_the_link(large):
    result = simulate(keep_all(large), large)
    link = [task for task in result.tasks if task.resource == "h2d"]
    weights = [task for task in link if task.name.startswith("weights")]
    reads = [task for task in link if task.name.startswith("read")]
    overtaken = [
        (weight.name, read.name)
        for weight in weights
        for read in reads
        if weight.ready_s < read.start_s < weight.start_s
    ]
    assert overtaken == []
    # Some upload did come between two chunks of one boundary.
    between = [
        weight
        for weight in weights
        for name in {read.name for read in reads}
        if (found := tasks_of(result, name))
        and found[0].start_s < weight.start_s < found[-1].start_s
    ]
    assert between


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_boundary_is_read_as_many_blocks_ahead_as_the_plan_says(make_timed, ahead):
    instance = make_timed(budget_bytes=Budget(gpu=100, cpu=800, nvme=0))
    plan = keep_all(instance).model_copy(update={"read_ahead_blocks": ahead})
    result = simulate(plan, instance)
    for order in range(LAYERS):
        layer = LAYERS - 1 - order
        read = one(result, f"read {layer}")
        # Block k goes back through layer 7 - k; the first ones are read at the turn.
        if order < ahead:
            begins = one(result, f"forward {LAYERS - 1}").end_s
        else:
            begins = one(result, f"backward {layer + ahead}").start_s
        assert read.start_s == pytest.approx(begins, abs=1e-5)
    assert result.step_s == pytest.approx(STEP, abs=1e-5)


@pytest.mark.parametrize("every", [2, 4])
def test_a_fused_block_runs_every_layer_forward_once_more_and_no_more(
    make_timed, every
):
    """Its backward holds all graphs: three seconds a layer as without omission."""
    instance = make_timed()
    plan = fixed_interval(instance, every)
    blocks = tuple(b.model_copy(update={"mode": "fused"}) for b in plan.blocks)
    fused = plan.model_copy(update={"blocks": blocks})
    result = simulate(fused, instance)
    assert result.step_s == pytest.approx(STEP)
    replayed = [task for task in result.tasks if task.name.startswith("replay")]
    assert len(replayed) == LAYERS
    assert one(result, "backward 0").seconds == B - F
    assert simulate(plan, instance).step_s > result.step_s


@pytest.fixture
def make_parts(make_timed):
    """Return a maker of instances whose layers have weights, gradients and updates."""

    def make(drain, **rates):
        parts = updated_layers(10, gradient_bytes=100)
        values = {"d2h": 1e9, "h2d": 1e9, "nvme_write": 1e9, "nvme_read": 1e9} | rates
        return make_timed(
            parts=parts,
            costs=Costs(embedding_s=0.5, turn_s=0.25, optimizer_parameters_per_s=20.0),
            bandwidth=Bandwidth(**values),
            execution=Execution(
                batch=1, seq_len=1, micro_batch=1, gradient_drain=drain
            ),
        )

    return make


def test_whole_gradients_go_down_behind_their_layer_and_gate_the_clip(make_parts):
    instance = make_parts("whole", d2h=20.0)
    result = simulate(keep_all(instance), instance)
    # Eight copies of 5 s follow the first backward: longer than the backward itself.
    gradients = [task for task in result.tasks if task.name.startswith("gradient")]
    assert len(gradients) == LAYERS
    first = one(result, f"gradient layer.{LAYERS - 1}")
    assert first.start_s == pytest.approx(one(result, f"backward {LAYERS - 1}").end_s)
    last = one(result, "gradient layer.0")
    assert last.end_s == pytest.approx(first.start_s + LAYERS * 5.0)
    # The clip takes no time; the next step's updates begin with it.
    assert result.step_s == pytest.approx(last.end_s)
    assert result.exposed_s["d2h"] > 0


def test_waiting_gradients_go_down_one_by_one_behind_the_clip(make_parts):
    instance = make_parts("as-consumed", d2h=20.0)
    plan = keep_all(instance)
    result = simulate(plan, instance)
    names = {task.name for task in result.tasks}
    assert not [name for name in names if name.startswith("gradient")]
    consumed = [task for task in result.tasks if task.name.startswith("consume")]
    assert len(consumed) == LAYERS
    # Each update waits for its own gradient: 5 s apart, though an update takes 0.5 s.
    updates = [task for task in result.tasks if task.name.startswith("update")]
    starts = sorted(task.start_s for task in updates)
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == pytest.approx([5.0] * (LAYERS - 1))


def test_nothing_of_a_block_runs_before_its_boundary_is_back(make_timed):
    """Boundary 0 takes 40 s to come back; the block's first replay waits for it."""
    instance = make_timed(
        budget_bytes=Budget(gpu=200, cpu=100, nvme=0),
        bandwidth=Bandwidth(d2h=1e9, h2d=2.5, nvme_write=1, nvme_read=1),
    )
    plan = fixed_interval(instance, 4)
    assert plan.homes[:5:4] == (Home.GPU, Home.CPU)
    result = simulate(plan, instance)
    read = one(result, "read 4")
    assert read.end_s - read.start_s == pytest.approx(40.0)
    assert one(result, "replay 4").start_s == pytest.approx(read.end_s)


def test_a_longer_read_ahead_may_not_hold_more_than_the_budget(make_timed):
    """Reads of 10 s: eight blocks ahead would hide most, but hold an eighth boundary.

    Four ahead, three kept ones are gone before the first comes back.
    """
    values = {"bandwidth": Bandwidth(d2h=1e9, h2d=10, nvme_write=1, nvme_read=1)}
    instance = make_timed(budget_bytes=Budget(gpu=700, cpu=200, nvme=0), **values)
    plan = plan_of(instance, "CC" + "G" * 7)
    chosen = with_prediction(plan, instance)
    assert chosen.read_ahead_blocks == 4
    assert chosen.prediction.peak_bytes["gpu"] <= 700
    far = plan.model_copy(update={"read_ahead_blocks": 8})
    assert simulate(far, instance).step_s < chosen.prediction.step_s
    roomy = make_timed(budget_bytes=Budget(gpu=800, cpu=200, nvme=0), **values)
    assert with_prediction(plan, roomy).read_ahead_blocks == 8


def test_a_read_ahead_that_gains_nothing_stays_short(make_timed):
    instance = make_timed(
        mandatory_h2d_bytes=(1000,) * LAYERS,
        bandwidth=Bandwidth(d2h=1e9, h2d=100, nvme_write=1, nvme_read=1),
    )
    plan = with_prediction(keep_all(instance), instance)
    assert plan.prediction.exposed_s["h2d"] > 0
    assert plan.read_ahead_blocks == 2
