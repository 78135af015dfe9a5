"""On a GPU: a bf16 run killed for good and resumed is the undisturbed one, in noise.

Sums on a GPU may come in another order after a restart, so that bits are not promised;
a lost moment, a repeated batch or a wrong rate would be a hundred times larger.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from streaming import plan_for, relative_error, small_config

from lazytrain.config import (
    AcceleratorSettings,
    ExactMatchSettings,
    ExecutorSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
)
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import generate
from lazytrain.evaluated import EvaluationPoint
from lazytrain.records import StepRecord, read_lines, write
from lazytrain.train import checkpoint
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_row

ACCELERATOR = "h200" if torch.cuda.is_available() else "cpu"
STEPS, EVERY, KILL_AFTER = 40, 4, 10
MODEL = "7B-mini"


def request_for(folder: Path, homes: str, out: str) -> RunRequest:
    """Return a quality run of a stand-in in bf16 with its split-off masters."""
    rows = generate(60, 0)
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="synthetic")
    write_rows(rows, folder / "rows.jsonl")
    write(manifest, folder / "split.json")
    config = small_config(MODEL)
    plan = plan_for(config, homes, batch=4, seq_len=128, state="hybrid")
    parts = tuple(
        part.model_copy(
            update={
                "weight_bytes": 2 * part.num_parameters,
                "optimizer_state": part.optimizer_state.model_copy(
                    update={"master": "fp32-split"}
                ),
            }
        )
        for part in plan.parts
    )
    write(plan.model_copy(update={"parts": parts}), folder / "plan.json")
    purpose = Purpose(
        num_steps=STEPS,
        warmup_steps=0,
        learning_rate=1e-3,
        eval_every=20,
        eval_rows=8,
        exact_match=ExactMatchSettings(
            every_epochs=0.5, rows=4, before="sample", after="sample", max_new_tokens=4
        ),
    )
    settings = AcceleratorSettings(
        executor=ExecutorSettings(dtype="bfloat16"), throughput=purpose, quality=purpose
    )
    row = RunRow(
        accelerator=ACCELERATOR,
        scale="7B",
        system="lazytrain",
        model=MODEL,
        stands_for="test",
        batch=4,
        seq_len=128,
    )
    return RunRequest(
        row=row,
        config=PipelineConfig(
            accelerators={ACCELERATOR: settings}, optimizer=OptimizerSettings(threads=2)
        ),
        purpose="quality",
        split=folder / "split.json",
        rows=folder / "rows.jsonl",
        out=folder / out,
        plan=folder / "plan.json",
        save_every=EVERY,
        keep_checkpoints=2,
        resume="auto",
    )


def kill_in_the_middle(request: RunRequest, folder: Path) -> None:
    """Start the run in a process of its own and kill it once it is well under way."""
    path = folder / "killed.json"
    write(request, path)
    worker = subprocess.Popen(
        [sys.executable, "-m", "lazytrain.train.worker", str(path)],
        env=os.environ | {"LAZYTRAIN_WORKER": "1"},
        stdin=subprocess.PIPE,  # it ends with its parent: when this closes
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = request.out / "steps.partial.jsonl"
    while worker.poll() is None:
        if lines.exists() and lines.read_text().count("\n") >= KILL_AFTER:
            worker.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    _, errors = worker.communicate()
    assert worker.returncode == -signal.SIGKILL, errors[-2000:]
    assert lines.read_text().count("\n") >= KILL_AFTER
    assert checkpoint.folders(request.out / "checkpoints")
    assert not (request.out / "record.json").exists()


def steps_of(request: RunRequest) -> list[StepRecord]:
    return read_lines(StepRecord, request.out / "steps.jsonl")


@pytest.mark.parametrize("homes", ["GCGRGCGGG", "CCCCCCCCG"])
def test_a_killed_run_goes_on_within_bf16_noise(tmp_path, homes):
    whole = request_for(tmp_path, homes, "whole")
    run_row(whole)
    killed = request_for(tmp_path, homes, "killed")
    kill_in_the_middle(killed, tmp_path)
    run_row(killed)
    expected, found = steps_of(whole), steps_of(killed)
    assert [step.step for step in found] == list(range(1, STEPS + 1))
    for one, other in zip(expected, found, strict=True):
        assert other.real_tokens == one.real_tokens  # the same rows in the same order
        assert other.learning_rate == one.learning_rate
        assert other.loss == pytest.approx(one.loss, rel=3e-2), one.step
    weights = [
        load_file(request.out / "weights" / "model.safetensors")
        for request in (whole, killed)
    ]
    # Together: a bias with hardly a gradient of its own follows the noise alone.
    one, other = (
        torch.cat([tensor.flatten() for _, tensor in sorted(side.items())])
        for side in weights
    )
    assert relative_error(other, one) < 2e-2
    points = [
        [(point.step, point.rows) for point in read_lines(EvaluationPoint, path)]
        for path in (whole.out / "evaluations.jsonl", killed.out / "evaluations.jsonl")
    ]
    assert points[0] == points[1]
    if os.environ.get("OUT"):
        worst = max(
            abs(a.loss - b.loss) / a.loss for a, b in zip(expected, found, strict=True)
        )
        line = {"test": "resume", "homes": homes, "worst_relative_loss": worst}
        with (Path(os.environ["OUT"]) / "resume.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
