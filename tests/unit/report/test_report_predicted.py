"""Predicted rows: scaled by the cards' rates, limited by memory, in own columns."""

from pathlib import Path

import pytest
from measured import hardware_profile, layer_profile

from lazytrain.config import Budgets, PipelineConfig, RunRow, load_yaml
from lazytrain.models.scales import model_config
from lazytrain.profile.targets import (
    load_machines,
    resized,
    scaled_layers,
    target_for,
)
from lazytrain.report.predicted import nearest_profile, predicted_rows
from lazytrain.report.tables import ThroughputRow, table3
from lazytrain.schedule.predict import predict
from lazytrain.schedule.shapes import model_shape

ROOT = Path(__file__).parents[3]
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
MACHINES = load_machines(ROOT / "config" / "hardware")
MODELS = {"3B": "Qwen2.5-3B", "7B": "Qwen2.5-7B", "14B": "Qwen2.5-14B"}


def row(system="lazytrain", scale="3B", accelerator="h200", batch=192, **values):
    given = {"model": MODELS[scale], "stands_for": MODELS[scale], "seq_len": 1024}
    return RunRow(
        system=system,
        scale=scale,
        accelerator=accelerator,
        batch=batch,
        table3=True,
        **given | values,
    )


def test_every_published_figure_names_its_source():
    assert {machine.name for machine in MACHINES} == {"H200", "H800", "RTX 3090"}
    for machine in MACHINES:
        figures = set(type(machine).model_fields) - {"name", "device", "sources"}
        given = {name for name in figures if getattr(machine, name)}
        assert given - {"accelerators"} <= set(machine.sources), machine.name


def test_layers_scale_with_the_ratio_of_the_cards():
    measured, layers = hardware_profile(), layer_profile()
    target = target_for("gpu24", Budgets(), [measured], MACHINES)
    assert target.name == "RTX 3090"
    # Both at the measured card's share of its peak: 989 to 71.
    found = scaled_layers(layers, measured, target.hardware)
    ratio = found.layers[0].forward_s / layers.layers[0].forward_s
    assert ratio == pytest.approx(989 / 71)
    assert found.loss_s / layers.loss_s == pytest.approx(989 / 71)
    level = found.layers[0].levels[0].backward_s
    assert level / layers.layers[0].levels[0].backward_s == pytest.approx(989 / 71)


def test_layers_of_another_size_cost_what_their_parameters_do():
    shape = model_shape(model_config("Qwen2.5-14B").to_dict(), "Qwen2.5-14B")
    small = layer_profile()
    found, counted = resized(small, shape), layer_profile("14B", "Qwen2.5-14B")
    for name in ("num_parameters", "weight_bytes", "boundary_bytes"):
        assert getattr(found.layers[0], name) == getattr(counted.layers[0], name)
    # The invented machine counts FLOPs, so attention makes the only difference.
    ratio = found.layers[0].forward_s / counted.layers[0].forward_s
    assert ratio == pytest.approx(1, rel=0.05)
    levels = [level.name for level in found.layers[0].levels]
    assert levels == ["inputs", "all"]
    assert found.layer_types == counted.layer_types
    assert found.head_parameters == counted.head_parameters
    wide = layer_profile("7B", "Qwen2.5-7B")
    hybrid = layer_profile("27B", "Qwen3.6-27B")
    assert nearest_profile(shape, [small, hybrid, wide]) is wide


def test_a_twin_keeps_its_rates_and_has_its_own_cap_and_host():
    measured = hardware_profile()
    twin = target_for("h200-cap70", Budgets(), [measured], MACHINES).hardware
    assert twin.gpu_cap_bytes == 70 * 2**30
    assert twin.matmul_flops_per_s == measured.matmul_flops_per_s
    large = Budgets(host_capacity="250GiB")
    twin = target_for("h200-256g", large, [measured], MACHINES).hardware
    assert twin.host_memory_bytes == 250 * 2**30
    assert target_for("cpu", Budgets(), [measured], MACHINES) is None
    assert target_for("gpu80", Budgets(), [], MACHINES) is None


def test_the_redundant_pass_costs_what_it_computes():
    hardware, layers = hardware_profile(), layer_profile()
    found = {
        name: predict(hardware, layers, row(name), CONFIG)
        for name in ("megatrain", "megatrain-single-recompute", "megatrain-milp")
    }
    forward = 1.25 * sum(cost.forward_s for cost in layers.layers) * 36 * 6
    saved = found["megatrain"].step_s - found["megatrain-single-recompute"].step_s
    assert saved == pytest.approx(forward, rel=0.01)
    # HBM has room for every checkpoint, so the plan replays nothing either.
    assert found["megatrain-milp"].step_s <= found["megatrain"].step_s - saved * 0.9
    assert predict(hardware, layers, row("resident"), CONFIG) is None


def test_limits_are_predicted_too():
    small = hardware_profile(host_memory_bytes=20 * 2**30)
    # A sheet id whose host memory is not configured but measured.
    asked = row("megatrain", accelerator="gpu80")
    found = predict(small, layer_profile(), asked, CONFIG)
    assert found.step_s is None
    assert found.limit.startswith("host OOM")
    card = hardware_profile(gpu_cap_bytes=40 * 2**30, gpu_memory_bytes=40 * 2**30)
    assert predict(card, layer_profile(), asked, CONFIG).limit[:3] == "OOM"


def test_rows_name_what_they_rest_on():
    rows = [
        row(),
        row(accelerator="gpu80"),
        row(accelerator="gpu80", system="zero3-offload", batch=32),
        row(accelerator="gpu80", scale="14B", batch=96),
        row(accelerator="cpu"),
    ]
    found = predicted_rows(
        rows, [hardware_profile()], [layer_profile()], MACHINES, CONFIG
    )
    by_key = {(r.accelerator, r.scale, r.system): r for r in found}
    assert len(found) == 4
    assert by_key["h200", "3B", "lazytrain"].basis == "measured machine"
    ours = by_key["gpu80", "3B", "lazytrain"]
    assert (ours.predicted_for, ours.layers_measured_on) == ("H800", "NVIDIA H200")
    assert float(ours.predicted_tflops) > 0
    zero = by_key["gpu80", "3B", "zero3-offload"]
    assert zero.predicted_tflops == "n/a"
    assert "no model" in zero.remark
    assert "Qwen2.5-3B resized" in by_key["gpu80", "14B", "lazytrain"].basis
    assert predicted_rows(rows, [], [], MACHINES, CONFIG) == []


def test_a_cell_not_yet_run_is_na_with_its_prediction_beside_it(make_record, paper):
    rows = [row(), row("megatrain")]
    expected = predicted_rows(
        rows, [hardware_profile()], [layer_profile()], MACHINES, CONFIG
    )
    record = make_record(scale="3B", accelerator="h200", batch=100, tflops=400.0)
    shown = {r.system: r for r in table3(rows, [record], paper, expected)}
    assert shown["lazytrain"].tflops == "400.00"
    assert shown["lazytrain"].batch == 100
    assert shown["megatrain"].tflops == "n/a"
    assert float(shown["megatrain"].predicted_tflops) > 0
    names = list(ThroughputRow.model_fields)
    measured = [name for name in names if not name.startswith(("predicted", "paper"))]
    values = {getattr(shown["megatrain"], name) for name in measured}
    assert shown["megatrain"].predicted_tflops not in values
