"""From profiles to instances: budgets, windows, parts and methods."""

from __future__ import annotations

import math

import pytest
from parts import part

from lazytrain.errors import InvalidInput
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import micro_batch
from lazytrain.schedule.host_room import DRAIN_SHARE, PROCESS_BYTES, host_capacity
from lazytrain.schedule.instance import Execution
from lazytrain.schedule.memory import ModelSizes, device_bytes, host_bytes
from lazytrain.schedule.solve import solve
from lazytrain.units import GIB, MIB


def test_times_and_boundaries_scale_to_the_batch(
    hardware, layers, make_row, make_config
):
    instance = derive_instance(hardware, layers, make_row(), make_config())
    assert instance.boundary_bytes == (32 * 128 * 128 * 4,) * 9
    assert instance.rho_s[0] == pytest.approx(0.02)
    assert instance.rho_s[3] == pytest.approx(0.04)
    assert instance.window_read_s[0] == pytest.approx(0.06)
    assert instance.bandwidth.h2d == 4e9
    assert instance.mandatory_h2d_bytes == (800_000,) * 8
    assert sum(instance.mandatory_d2h_bytes) == 0
    assert instance.execution.micro_batch == 8
    assert instance.execution.master == "fp32"
    assert instance.lambda_z_s < min(instance.rho_s)


def test_windows_last_as_long_as_weights_stream(
    hardware, layers, make_row, make_config
):
    link = hardware.link.model_copy(update={"h2d_together": 1e6})
    slow = hardware.model_copy(update={"link": link})
    instance = derive_instance(slow, layers, make_row(), make_config())
    assert instance.window_write_s == (0.8,) * 8
    assert instance.costs.forward_s[0] == pytest.approx(0.02)


def test_parts_are_embedding_layers_and_head(hardware, layers, make_row, make_config):
    instance = derive_instance(hardware, layers, make_row(), make_config())
    names = [part.name for part in instance.parts]
    assert names == ["embedding", *(f"layer.{j}" for j in range(8)), "head"]
    plan = solve(instance)
    assert plan.update_order == tuple(names)
    assert [p.weights for p in plan.parts[:2]] == ["resident", "streamed"]
    tied = layers.model_copy(update={"tied": True, "head_parameters": 128})
    instance = derive_instance(hardware, tied, make_row(), make_config())
    assert instance.parts[-1].tied_to == "embedding"


@pytest.mark.parametrize(
    ("system", "method", "state"),
    [
        ("lazytrain", "milp", "hybrid"),
        ("lazytrain-no-hybrid8bit", "milp", "fp32"),
        ("lazytrain-no-milp", "fixed-interval:4", "hybrid"),
        ("megatrain", "fixed-interval:4", "fp32"),
    ],
)
def test_each_system_has_its_method_and_state(
    hardware, layers, make_row, make_config, system, method, state
):
    instance = derive_instance(hardware, layers, make_row(system), make_config())
    assert instance.method == method
    plan = solve(instance)
    check(plan, instance).raise_if_violated()
    assert plan.solve.method == method
    assert {part.optimizer_state.format for part in plan.parts} == {state}


def test_roomy_budgets_keep_everything_on_the_device(
    hardware, layers, make_row, make_config
):
    config = make_config("1GiB", nvme_activations="0B")
    roomy = derive_instance(hardware, layers, make_row(), config)
    assert set(solve(roomy).homes) == {"gpu"}


def test_tight_budgets_force_offloading_and_recomputation(
    hardware, layers, make_row, make_config
):
    config = make_config("38MiB", cpu_activations="4MiB", nvme_activations="2MiB")
    instance = derive_instance(hardware, layers, make_row(), config)
    plan = solve(instance)
    check(plan, instance).raise_if_violated()
    assert {"cpu", "recompute"} <= set(plan.homes)
    peak = plan.prediction.peak_bytes["gpu"]
    assert peak <= 38 * MIB


def test_a_cap_below_the_step_is_refused_with_its_causes(
    hardware, layers, make_row, make_config
):
    with pytest.raises(InvalidInput, match=r"budgets.gpu_cap.*working_hidden"):
        derive_instance(hardware, layers, make_row(), make_config("5MiB"))


@pytest.mark.parametrize(
    ("cap", "field"), [("80", "gpu_cap"), ("auto", "gpu_cap"), ("1XB", "gpu_cap")]
)
def test_budgets_without_unit_or_source_are_refused(
    hardware, layers, make_row, make_config, cap, field
):
    with pytest.raises(InvalidInput, match=field):
        derive_instance(hardware, layers, make_row(), make_config(cap))


def test_unknown_sheet_ids_and_types_are_refused(
    hardware, layers, make_row, make_config
):
    row = make_row().model_copy(update={"accelerator": "gpu80"})
    with pytest.raises(InvalidInput, match="accelerator"):
        derive_instance(hardware, layers, row, make_config())
    odd = layers.model_copy(update={"layer_types": ("mamba",) * 8})
    with pytest.raises(InvalidInput, match="mamba"):
        derive_instance(hardware, odd, make_row(), make_config())


def test_a_device_keeps_a_reserve(hardware, layers, make_row, make_config):
    card = hardware.model_copy(
        update={"gpu_memory_bytes": 80 * GIB, "gpu_cap_bytes": 70 * GIB}
    )
    instance = derive_instance(card, layers, make_row(), make_config("auto"))
    assert instance.execution.reserve_bytes == 4 * GIB
    total = instance.fixed_bytes.gpu + instance.budget_bytes.gpu
    assert total == 70 * GIB


@pytest.mark.parametrize(
    ("batch", "seq_len", "tokens", "expected"),
    [(72, 1024, 16384, 12), (7, 1024, 4096, 1), (32, 128, 1, 1), (6, 10, 10**6, 6)],
)
def test_micro_batch_is_the_largest_fitting_divisor(batch, seq_len, tokens, expected):
    assert micro_batch(batch, seq_len, tokens) == expected


def test_memory_model_by_hand():
    run = Execution(
        batch=4,
        seq_len=8,
        micro_batch=2,
        weight_slots=3,
        grad_slots=2,
        loss_chunk_tokens=16,
        reserve_bytes=1000,
        optimizer="hybrid_adamw_8bit",
        eight_bit_fraction=0.5,
    )
    parts = (
        part("embedding", "embedding", 100),
        *(part(f"layer.{j}", "layer", 50) for j in range(4)),
    )
    sizes = ModelSizes(hidden=10, vocab=20, itemsize=2, workspace_bytes=77)
    device = device_bytes(parts, run, sizes, offloads=True)
    boundary = 4 * 8 * 10 * 2
    assert vars(device) == {
        "reserve": 1000,
        "weight_slots": 300,
        "gradient_accumulator": 200,
        "grad_slots": 200,
        "waiting_gradients": 0,
        "ends": 200,
        "end_gradient": 400,
        "loss_chunk": 2 * 16 * 20 * 2,
        "working_hidden": 2 * boundary,
        "layer_workspace": 77,
        "transit": 3 * boundary,
    }
    host = host_bytes(parts, run, bounced_bytes=boundary)
    assert host.weights == host.gradients == 600
    assert host.master_remainder == 600
    # Half at 8 B, half at two bytes and two fp32 scales per 4096.
    assert host.optimizer_state == int(300 * (0.5 * 8 + 0.5 * (2 + 8 / 4096)))
    assert host.bounce == 3 * boundary
    waits = run.model_copy(update={"gradient_drain": "as-consumed"})
    device = device_bytes(parts, waits, sizes, offloads=True)
    assert device.waiting_gradients == 4 * 100
    # The embedding's, which is sent at once, and two buffers for the layers'.
    assert host_bytes(parts, waits).gradients == 200 + 2 * 100


def test_gradients_wait_in_hbm_where_the_host_cannot_hold_them(
    hardware, layers, make_row, make_config
):
    config = make_config("1GiB", nvme_activations="0B")
    roomy = derive_instance(hardware, layers, make_row(), config)
    assert roomy.execution.gradient_drain == "whole"
    held = roomy.fixed_bytes.cpu
    tightest = math.ceil(held / DRAIN_SHARE)
    enough = make_config("1GiB", host_capacity=f"{tightest}B", nvme_activations="0B")
    instance = derive_instance(hardware, layers, make_row(), enough)
    assert instance.execution.gradient_drain == "whole"
    small = f"{tightest - 2}B"
    config = make_config("1GiB", host_capacity=small, nvme_activations="0B")
    tight = derive_instance(hardware, layers, make_row(), config)
    assert tight.execution.gradient_drain == "as-consumed"
    gradients = [p.gradient_bytes for p in tight.parts if p.kind == "layer"]
    saved = sum(gradients) - 2 * max(gradients)
    assert tight.fixed_bytes.cpu <= held - saved
    assert tight.fixed_bytes.gpu >= roomy.fixed_bytes.gpu + sum(gradients) - 1
    plan = solve(tight)
    drains = {part.name: part.gradient.drain for part in plan.parts}
    assert drains["layer.0"] == "as-consumed"
    assert drains["head"] == drains["embedding"] == "whole"
    assert check(plan, tight).violations == ()
    assert plan.prediction.peak_bytes["cpu"] <= held - saved


@pytest.mark.parametrize("cap", ["38MiB", "42MiB", "64MiB", "1GiB"])
@pytest.mark.parametrize("others", ["0B", "2MiB", "6MiB"])
def test_planned_memory_stays_within_the_cap(
    hardware, layers, make_row, make_config, cap, others
):
    config = make_config(cap, cpu_activations=others, nvme_activations=others)
    instance = derive_instance(hardware, layers, make_row(), config)
    for method in ("milp", "fixed-interval:4", "greedy", "sqrt-l"):
        plan = solve(instance, method=method)
        check(plan, instance).raise_if_violated()
        cap_bytes = instance.fixed_bytes.gpu + instance.budget_bytes.gpu
        assert plan.prediction.peak_bytes["gpu"] <= cap_bytes


def test_a_plan_for_the_baselines_step_keeps_checkpoints_in_hbm(
    hardware, layers, make_row, make_config
):
    row = make_row("megatrain-milp")
    for cap in ("38MiB", "1GiB"):
        instance = derive_instance(hardware, layers, row, make_config(cap))
        assert instance.method == "milp"
        plan = solve(instance)
        check(plan, instance).raise_if_violated()
        assert set(plan.homes) <= {"gpu", "recompute"}
        assert plan.homes[0] == "gpu"
    assert set(plan.homes) == {"gpu"}


def test_a_rivals_gradients_leave_at_once_however_small_the_host(
    hardware, layers, make_row, make_config
):
    config = make_config("1GiB", host_capacity="1B")
    for system, drain in (("lazytrain", "as-consumed"), ("megatrain", "whole")):
        instance = derive_instance(hardware, layers, make_row(system), config)
        assert instance.execution.gradient_drain == drain


def test_a_configured_host_capacity_leaves_room_for_the_process(hardware, make_config):
    config = make_config("1GiB", host_capacity="120GiB")
    settings = next(iter(config.accelerators.values()))
    on_gpu = hardware.model_copy(update={"gpu_memory_bytes": 80 * GIB})
    assert host_capacity(settings, on_gpu) == 120 * GIB - PROCESS_BYTES
    on_cpu = hardware.model_copy(update={"gpu_memory_bytes": 0})
    assert host_capacity(settings, on_cpu) == 120 * GIB
