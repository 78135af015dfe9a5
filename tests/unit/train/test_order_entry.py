"""Plans that a run makes for itself are in the order that its settings ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from streaming import small_config

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
    PipelineConfig,
    Purpose,
    RunRow,
)
from lazytrain.records import HardwareProfile, LayerProfile, read
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Plan
from lazytrain.train.max_batch import Planner
from lazytrain.train.planning import make_plan
from lazytrain.train.request import RunRequest

Order = Literal["layer-major", "batch-major", "auto"]
ROW = RunRow(
    accelerator="cpu",
    scale="3B",
    system="lazytrain",
    model="3B-mini",
    stands_for="Qwen2.5-3B",
    batch=4,
    seq_len=64,
)


def pipeline(order: Order, tokens: int = 64) -> PipelineConfig:
    """Return settings of a small run in an order."""
    purpose = Purpose(num_steps=1, warmup_steps=0, learning_rate=1e-3)
    settings = AcceleratorSettings(
        executor=ExecutorSettings(
            order=order, micro_batch_tokens=tokens, chunk_bytes="1MiB"
        ),
        budgets=Budgets(gpu_cap="48MiB", cpu_activations="8MiB"),
        throughput=purpose,
        quality=purpose,
    )
    return PipelineConfig(accelerators={"cpu": settings})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    """Return where a batch-major plan's profiles and instance lie, and the plan."""
    out = tmp_path_factory.mktemp("measured")
    return out, make_plan(ROW, pipeline("batch-major"), small_config("3B-mini"), out)


def test_a_plan_made_for_a_run_is_in_the_chosen_order(
    measured: tuple[Path, Plan],
) -> None:
    out, plan = measured
    instance = read(Instance, out / "instance.json")
    assert instance.execution is not None
    assert instance.execution.order == "batch-major"
    assert instance.chosen.startswith("batch-major in 4 waves of 1 sequences: ")
    assert plan.instance_sha256 == instance.sha256
    assert plan.groups[0].order == "batch-major"
    assert plan.solve.parameters["order"] == instance.chosen


def planner(measured: tuple[Path, Plan], config: PipelineConfig, out: Path) -> Planner:
    """Return a planner on a machine whose link makes weights that stay worth most."""
    folder, _ = measured
    hardware = read(HardwareProfile, folder / "hardware.json")
    link = hardware.link.model_copy(update={"h2d_together": 1e5})
    request = RunRequest(
        row=ROW,
        config=config,
        purpose="throughput",
        split=out / "split.json",
        rows=out / "rows.jsonl",
        out=out,
    )
    slow = hardware.model_copy(update={"link": link})
    return Planner(slow, read(LayerProfile, folder / "layers.json"), request)


@pytest.mark.parametrize(
    ("order", "taken"),
    [
        ("layer-major", "layer-major"),
        ("batch-major", "batch-major"),
        ("auto", "batch-major"),
    ],
)
@pytest.mark.parametrize("batch", [2, 8])
def test_each_batch_tried_is_planned_in_the_chosen_order(
    measured: tuple[Path, Plan], tmp_path: Path, order: Order, taken: str, batch: int
) -> None:
    path = planner(measured, pipeline(order), tmp_path).plan(batch)
    assert path is not None
    plan = read(Plan, path)
    group = plan.groups[0]
    assert (group.order, group.sequences) == (taken, batch)
    if order == "layer-major":
        assert "order" not in plan.solve.parameters
        return
    assert {part.weights for part in plan.parts} == {"resident"}
    assert str(plan.solve.parameters["order"]).startswith("batch-major in ")
