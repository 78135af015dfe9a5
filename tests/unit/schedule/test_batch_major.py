"""Steps in waves: memory and time by hand, waves and order chosen, faults caught."""

from __future__ import annotations

import contextlib

import pytest
from parts import part

from lazytrain.errors import DoesNotFit, InvalidInput, NoSchedule
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.heuristics import keep_all, recompute_all
from lazytrain.schedule.instance import Budget, Costs, Execution, PartSpec
from lazytrain.schedule.memory import ModelSizes, device_bytes, planned_bytes
from lazytrain.schedule.order import instance_for
from lazytrain.schedule.simulate import simulate
from lazytrain.schedule.solve import solve
from lazytrain.units import MIB


def test_boundaries_are_those_of_a_wave_and_weights_stay(
    hardware, layers, make_row, make_ordered
):
    row = make_row()
    whole = derive_instance(hardware, layers, row, make_ordered("layer-major"))
    waves = derive_instance(hardware, layers, row, make_ordered("batch-major"))
    run = waves.execution
    assert (run.order, run.micro_batch, run.num_waves) == ("batch-major", 8, 4)
    assert run.resident_weights
    assert [4 * a for a in waves.boundary_bytes] == list(whole.boundary_bytes)
    assert waves.rho_s == whole.rho_s
    assert waves.costs == whole.costs
    assert waves.mandatory_h2d_bytes == (0,) * 8
    assert (waves.budget_bytes.cpu, waves.budget_bytes.nvme) == (0, 0)
    plan = solve(waves)
    assert check(plan, waves).violations == ()
    assert {part.weights for part in plan.parts} == {"resident"}
    assert {part.gradient.home for part in plan.parts} == {"gpu"}
    assert plan.transfers == ()


def test_a_rivals_step_keeps_its_order(hardware, layers, make_row, make_ordered):
    config, row = make_ordered("batch-major"), make_row("megatrain")
    plain = derive_instance(hardware, layers, row, make_ordered("layer-major"))
    assert instance_for(hardware, layers, row, config) == plain


PARTS = (
    part("embedding", "embedding", 100),
    *(part(f"layer.{j}", "layer", 50 + j) for j in range(2)),
    part("head", "head", 30),
)


def test_memory_by_hand():
    run = Execution(
        batch=6,
        seq_len=8,
        micro_batch=2,
        order="batch-major",
        resident_weights=True,
        loss_chunk_tokens=16,
        grad_slots=2,
        reserve_bytes=1000,
    )
    sizes = ModelSizes(hidden=10, vocab=20, itemsize=2, workspace_bytes=77)
    wave = 2 * 8 * 10 * 2
    held = vars(device_bytes(PARTS, run, sizes, offloads=False))
    assert held == {
        "reserve": 1000,
        "weight_slots": 100 + 102,
        "gradient_accumulator": 4 * (50 + 51),
        "grad_slots": 2 * 102,
        "waiting_gradients": 0,
        "ends": 200 + 60,
        "end_gradient": 4 * (100 + 30),
        "loss_chunk": 2 * 16 * 20 * 2,
        "working_hidden": 2 * wave,
        "layer_workspace": 77,
        "transit": wave,
    }
    # One wave is one pass: sums are shared, as in layer-major order.
    once = run.model_copy(update={"micro_batch": 6})
    held = device_bytes(PARTS, once, sizes, offloads=False)
    assert held.gradient_accumulator == 4 * 51
    assert held.end_gradient == 4 * 100


def test_levels_keep_bytes_of_a_wave_and_save_seconds_of_the_batch(
    hardware, compiled, make_row, make_ordered
):
    # A batch of 4096 tokens in waves of 1024; 2048 were profiled.
    instance = derive_instance(
        hardware, compiled, make_row(), make_ordered("batch-major", "256MiB")
    )
    low, high = instance.levels["linear_attention"]
    assert high.kept_bytes == 3 * MIB // 2
    assert low.step_s - high.step_s == pytest.approx(0.01 * 2)
    plan = solve(instance)
    assert set(plan.groups[0].save_level) == {"all"}
    assert {t.kept_bytes for t in plan.templates} == {3 * MIB // 2}
    saved = 6 * 0.02 + 2 * 0.04
    base = plan.model_copy(
        update={
            "groups": (
                plan.groups[0].model_copy(update={"save_level": ("inputs",) * 8}),
            )
        }
    )
    faster = simulate(base, instance).step_s - simulate(plan, instance).step_s
    assert faster == pytest.approx(saved)
    held = planned_bytes(plan, instance)["gpu"] - planned_bytes(base, instance)["gpu"]
    assert held == 8 * 3 * MIB // 2


@pytest.fixture
def make_timed(make_instance):
    """Return a maker of two-layer instances of two waves.

    Per wave the embedding takes 0.25 s each way, a layer 2 s and 6 s, the loss 0.5 s:
    17 s of compute. Updates take 1, 3, 3 and 1 s.
    """

    def make(weights=0, gradients=0, rate=10.0, **run):
        spec = {"weight_bytes": weights, "gradient_bytes": gradients}
        free = {"weight_bytes": 0, "gradient_bytes": 0}
        layer = {"kind": "layer", "num_parameters": 30, **spec}
        execution = Execution(
            batch=4,
            seq_len=1,
            micro_batch=2,
            **{"order": "batch-major", "resident_weights": True} | run,
        )
        return make_instance(
            layers=2,
            rho_s=(4.0, 4.0),
            window_write_s=(4.0, 4.0),
            window_read_s=(12.0, 12.0),
            bandwidth={"d2h": 10, "h2d": 10, "nvme_write": 1, "nvme_read": 1},
            budget_bytes=Budget(gpu=300, cpu=0, nvme=0),
            costs=Costs(embedding_s=1.0, turn_s=1.0, optimizer_parameters_per_s=rate),
            parts=(
                PartSpec(name="embedding", kind="embedding", num_parameters=10, **free),
                PartSpec(name="layer.0", **layer),
                PartSpec(name="layer.1", **layer),
                PartSpec(name="head", kind="head", num_parameters=10, **free),
            ),
            execution=execution,
        )

    return make


def test_updates_hide_under_the_first_wave_only(make_timed):
    instance = make_timed()
    result = simulate(keep_all(instance), instance)
    # Updated: embedding at 1, layer 0 at 4, layer 1 at 7, head at 8. The first wave's
    # forward runs 1-1.25, 4-6 and 7-9; all that follows waits for nothing.
    assert result.compute_s == pytest.approx(34.0)
    assert result.exposed_s == {"optimizer": pytest.approx(1 + 2.75 + 1)}
    assert result.step_s == pytest.approx(38.75)
    windows = result.prediction.window_s
    assert windows["forward 1"] == windows["forward 0"] == pytest.approx(4.0)
    assert windows["backward 1"] == pytest.approx(12.0)
    assert windows["loss"] == pytest.approx(1.0)
    # Layer-major the first forward lasts twice as long, and hides more.
    whole = make_timed(order="layer-major")
    result = simulate(keep_all(whole), whole)
    assert result.step_s == pytest.approx(34 + 1 + 2.5)


def test_gradients_go_down_once_and_behind_the_last_wave(make_timed):
    instance = make_timed(gradients=10, rate=0.0)
    result = simulate(keep_all(instance), instance)
    assert result.busy_s["d2h"] == pytest.approx(2.0)
    # Layer 0's takes 1 s, of which the embedding's backward hides 0.25 s.
    assert result.step_s == pytest.approx(34.75)
    down = [task for task in result.tasks if task.resource == "d2h"]
    back = [task for task in result.tasks if task.name == "backward 1"]
    assert len(back) == 2
    assert min(task.start_s for task in down) >= max(task.end_s for task in back)


@pytest.mark.parametrize(("distance", "waits"), [(0, 0.75 + 1.0), (1, 0.75)])
def test_resident_weights_are_refreshed_once_a_step(make_timed, distance, waits):
    instance = make_timed(weights=10, rate=0.0, prefetch_distance=distance)
    result = simulate(keep_all(instance), instance)
    assert result.busy_s["h2d"] == pytest.approx(2.0)
    # The first copy of 1 s hides under 0.25 s of embedding; the second one under
    # layer 0's forward, if it may run ahead of it.
    assert result.step_s == pytest.approx(34.0 + waits)


def test_every_wave_replays_what_is_omitted(make_timed):
    instance = make_timed(rate=0.0)
    result = simulate(recompute_all(instance), instance)
    assert result.step_s == pytest.approx(34.0 + 4.0)
    # Boundaries of one wave at a time: 0 and 1 before layer 1 goes back.
    assert result.peak_bytes["gpu"] == 200


def test_waves_are_as_large_as_lets_them_keep_everything(
    hardware, compiled, make_row, make_ordered
):
    row = make_row().model_copy(update={"seq_len": 1024})

    def planned(tokens, cap):
        config = make_ordered("batch-major", cap, tokens)
        instance = derive_instance(hardware, compiled, row, config)
        return instance, solve(instance)

    caps = {"1200MiB": 32, "512MiB": 16, "200MiB": 8}
    for cap, rows in caps.items():
        config = make_ordered("batch-major", cap, 32 * 1024)
        chosen = instance_for(hardware, compiled, row, config)
        assert chosen.execution.micro_batch == rows
        steps = {}
        for size in (32, 16, 8):
            # The whole batch's boundaries do not always fit.
            with contextlib.suppress(NoSchedule):
                steps[size] = planned(size * 1024, cap)[1].prediction.step_s
        good = [size for size, s in steps.items() if s < 1.001 * min(steps.values())]
        assert max(good) == rows
        assert f"batch-major in {32 // rows} wave" in chosen.chosen
        plan = solve(chosen)
        assert plan.solve.parameters["order"] == chosen.chosen
        assert check(plan, chosen).violations == ()
        assert plan.instance_sha256 == planned(rows * 1024, cap)[0].sha256


def test_small_waves_are_a_last_resort(hardware, compiled, make_row, make_ordered):
    row = make_row().model_copy(update={"seq_len": 1024})
    config = make_ordered("batch-major", "64MiB", 32 * 1024)
    chosen = instance_for(hardware, compiled, row, config)
    assert chosen.execution.micro_batch * 1024 < 8192
    config = make_ordered("batch-major", "8MiB", 32 * 1024)
    with pytest.raises(DoesNotFit, match="gpu_cap"):
        instance_for(hardware, compiled, row, config)


def test_auto_takes_the_faster_order_and_says_why(
    hardware, layers, compiled, make_row, make_ordered
):
    row = make_row()
    # Without anything to gain, waves only hide less of the update.
    config = make_ordered("auto", "256MiB")
    chosen = instance_for(hardware, layers, row, config)
    assert chosen.execution.order == "layer-major"
    assert chosen.chosen.startswith("layer-major: ")
    assert "; batch-major in 4 waves of 8 sequences: " in chosen.chosen
    plain = derive_instance(
        hardware, layers, row, make_ordered("layer-major", "256MiB")
    )
    assert chosen.sha256 == plain.sha256
    # Where the link is slow, weights that stay are worth more.
    link = hardware.link.model_copy(update={"h2d_together": 1e6})
    slow = hardware.model_copy(update={"link": link})
    assert instance_for(slow, layers, row, config).execution.order == "batch-major"
    # So are kept activations, where the whole batch's do not fit.
    fast = hardware.model_copy(
        update={"optimizer_parameters_per_s": {"fp32": 1e12, "hybrid": 1e12}}
    )
    tight = make_ordered("auto", "64MiB", cpu_activations="0B", nvme_activations="0B")
    chosen = instance_for(fast, compiled, row, tight)
    assert chosen.execution.order == "batch-major"
    assert "; layer-major: " in chosen.chosen


def test_auto_falls_back_where_the_sums_do_not_fit(
    hardware, layers, make_row, make_ordered
):
    row = make_row(batch=8)
    config = make_ordered("auto", "15MiB", tokens=128)
    chosen = instance_for(hardware, layers, row, config)
    assert chosen.execution.order == "layer-major"
    assert "batch-major: budgets.gpu_cap" in chosen.chosen
    with pytest.raises(InvalidInput, match="gpu_cap"):
        instance_for(hardware, layers, row, make_ordered("auto", "4MiB", tokens=128))
