"""A run killed at any moment and resumed is the undisturbed run, bit for bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from streaming import plan_for, small_config

from lazytrain.config import (
    AcceleratorSettings,
    ExactMatchSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
)
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import generate
from lazytrain.evaluated import EvaluationPoint
from lazytrain.records import RunRecord, read, read_lines, write
from lazytrain.train.request import RunRequest

DRIVER = Path(__file__).parents[2] / "killpoints.py"
STEPS = 4
# After the second step, and before and after all of them.
ANSWERS = ExactMatchSettings(
    every_epochs=0.04, rows=2, before="sample", after="sample", max_new_tokens=3
)


def make_request(folder: Path, homes: str = "GCRGCGG", **changes) -> RunRequest:
    rows = generate(30, 0)
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="synthetic")
    write_rows(rows, folder / "rows.jsonl")
    write(manifest, folder / "split.json")
    plan = plan_for(
        small_config(), homes, batch=2, seq_len=48, micro_batch=1, state="hybrid"
    )
    write(plan, folder / "plan.json")
    purpose = Purpose(
        num_steps=STEPS,
        warmup_steps=0,
        learning_rate=3e-3,
        eval_every=2,
        eval_rows=2,
        exact_match=ANSWERS,
    )
    settings = AcceleratorSettings(throughput=purpose, quality=purpose)
    row = RunRow(
        accelerator="cpu",
        scale="3B",
        system="lazytrain",
        model="3B-mini",
        stands_for="test",
        batch=2,
        seq_len=48,
    )
    values = {
        "row": row,
        "config": PipelineConfig(
            accelerators={"cpu": settings},
            optimizer=OptimizerSettings(threads=1),
            allow_truncation=True,
        ),
        "purpose": "quality",
        "split": folder / "split.json",
        "rows": folder / "rows.jsonl",
        "out": folder / "out",
        "plan": folder / "plan.json",
        "save_every": 1,
        "resume": "auto",
    }
    return RunRequest(**(values | changes))


def numbers(out: Path) -> list[tuple]:
    """Return what of each step must not depend on when it ran."""
    lines = (out / "steps.jsonl").read_text().splitlines()
    names = ("step", "loss", "grad_norm", "learning_rate", "eval_loss", "real_tokens")
    return [tuple(json.loads(line)[name] for name in names) for line in lines]


def answers(out: Path) -> list[tuple]:
    """Return what of each evaluation must not depend on when it ran."""
    points = read_lines(EvaluationPoint, out / "evaluations.jsonl")
    return [
        (point.step, point.epoch, point.rows, (out / point.predictions).read_bytes())
        for point in points
    ]


def drive(folder: Path, points: list[str]) -> None:
    command = [sys.executable, DRIVER, folder / "request.json", folder / "runs"]
    done = subprocess.run(
        [*command, *points],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def check(folder: Path, points: list[str]) -> None:
    truth = folder / "runs" / "count"
    weights = (truth / "weights" / "model.safetensors").read_bytes()
    expected = numbers(truth)
    assert [step[0] for step in expected] == list(range(1, STEPS + 1))
    answered = answers(truth)
    assert [point[0] for point in answered] == [0, 2, STEPS]
    for point in points:
        out = folder / "runs" / point
        assert numbers(out) == expected, point
        assert answers(out) == answered, point
        assert (out / "weights" / "model.safetensors").read_bytes() == weights, point
        record = read(RunRecord, out / "record.json")
        assert (record.num_steps, record.first_loss) == (STEPS, expected[0][1])
        left = sorted(path.name for path in (out / "checkpoints").iterdir())
        assert left == ["step-000003", "step-000004"], point


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    write(make_request(folder), folder / "request.json")
    drive(folder, ["count"])
    return folder, int((folder / "runs" / "count" / "operations").read_text())


def test_few_kill_points(undisturbed):
    folder, count = undisturbed
    points = [str(count * share // 8) for share in (2, 5, 7)]
    drive(folder, points)
    check(folder, points)


@pytest.mark.slow
def test_fifty_kill_points(undisturbed):
    folder, count = undisturbed
    chosen = random.Random(0)
    # The other test's folders lie beside: a leading zero keeps their names apart.
    points = [f"0{n}" for n in sorted(chosen.sample(range(1, count), 38))]
    points += [f"t{chosen.uniform(0.2, 4.0):.3f}" for _ in range(12)]
    drive(folder, points)
    check(folder, points)
