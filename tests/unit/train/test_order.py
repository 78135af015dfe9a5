"""A row measured, planned and run in either order of the executor."""

from __future__ import annotations

import pytest
from streaming import small_config
from test_run import request

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
    PipelineConfig,
    Purpose,
)
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import generate
from lazytrain.records import PlanVsMeasured, StepRecord, read, read_lines, write
from lazytrain.train.planning import make_plan
from lazytrain.train.run import run_row

STEPS = 4


@pytest.fixture
def trained(tmp_path):
    """Return a function that trains a stand-in in an order: plan, losses, record."""
    rows = generate(40, 0)
    write_rows(rows, tmp_path / "rows.jsonl")
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="synthetic")
    write(manifest, tmp_path / "split.json")
    purpose = Purpose(num_steps=STEPS, warmup_steps=1, learning_rate=1e-3)

    def train(order):
        executor = ExecutorSettings(
            order=order, micro_batch_tokens=256, chunk_bytes="1MiB"
        )
        settings = AcceleratorSettings(
            executor=executor,
            budgets=Budgets(gpu_cap="48MiB", cpu_activations="8MiB"),
            throughput=purpose,
            quality=purpose,
        )
        config = PipelineConfig(accelerators={"cpu": settings})
        out = tmp_path / order
        asked = request(tmp_path, out, config=config, plan=out / "plan.json")
        row = asked.row.model_copy(update={"system": "lazytrain", "batch": 4})
        plan = make_plan(row, config, small_config("3B-mini"), out)
        write(plan, out / "plan.json")
        record = run_row(asked.model_copy(update={"row": row}))
        assert record.status == "ok"
        steps = read_lines(StepRecord, out / "steps.jsonl")
        return plan, [step.loss for step in steps], out

    return train


def test_both_orders_train_to_the_same_losses(trained):
    whole, truth, _ = trained("layer-major")
    waves, losses, out = trained("batch-major")
    assert {group.order for group in whole.groups} == {"layer-major"}
    assert waves.groups[0].order == "batch-major"
    assert waves.groups[0].micro_batch == 1
    assert {part.weights for part in waves.parts} == {"resident"}
    assert len(losses) == STEPS
    assert losses == pytest.approx(truth, rel=1e-6)
    assert losses[-1] < losses[0]
    # Four waves are one window each, in the prediction as in the run.
    seen = read(PlanVsMeasured, out / "plan_vs_measured.json").windows
    assert waves.prediction is not None
    assert seen["forward 0"].predicted_s == waves.prediction.window_s["forward 0"]
    assert seen["forward 0"].measured_s > 0
