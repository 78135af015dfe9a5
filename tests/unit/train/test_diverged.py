"""A run whose loss stays without a finite value ends, and keeps what was good."""

from __future__ import annotations

import json
import math

import pytest
from test_checkpoint_kill import make_request
from test_finetune import shortened
from test_loop import Traced, batch, purpose, run
from typer.testing import CliRunner

from lazytrain.commands.export import app as export_app
from lazytrain.commands.train import app
from lazytrain.records import RunRecord, StepRecord, read, read_lines
from lazytrain.report.frames import limit_cell
from lazytrain.train.checkpoint import newest
from lazytrain.train.loop import Loop, nonfinite_limit
from lazytrain.train.measure import nonfinite_at_end
from lazytrain.train.run import run_row


def broken(*numbers):
    return Traced(dict.fromkeys(numbers, math.nan))


def rated(request, **changes):
    """Return a request with other settings of its training."""
    settings = request.config.accelerators["cpu"]
    quality = settings.quality.model_copy(update=changes)
    changed = settings.model_copy(update={"quality": quality})
    config = request.config.model_copy(update={"accelerators": {"cpu": changed}})
    return request.model_copy(update={"config": config})


def taken(numbers, skipped=(), unlabelled=()):
    return [
        StepRecord(
            step=number,
            loss=0.0,
            grad_norm=None,
            learning_rate=0.1,
            step_s=1.0,
            real_tokens=1,
            padded_tokens=1,
            supervised_tokens=int(number not in unlabelled),
            skipped=number in (*skipped, *unlabelled),
        )
        for number in numbers
    ]


@pytest.mark.parametrize(
    ("bad", "most", "num_taken", "diverged"),
    [
        ((3, 4, 5), 3, 6, 3),  # the sixth was on its way
        ((3, 4), 3, 9, 0),
        ((2, 3, 5, 6, 8, 9), 3, 9, 0),
        ((3, 4, 5), 0, 9, 0),
        ((4,), 1, 5, 1),
        ((7, 8, 9), 3, 9, 3),
        ((5, 6, 7, 8, 9), 10, 9, 5),  # over half of the run
    ],
)
def test_so_many_steps_in_a_row_end_a_run(bad, most, num_taken, diverged):
    engine = broken(*bad)
    settings = purpose(num_steps=9, warmup_steps=0, max_nonfinite_steps=most)
    outcome, seen = run(engine, settings)
    assert (len(outcome.steps), outcome.diverged) == (num_taken, diverged)
    assert seen == outcome.steps
    assert engine.events[-1] == "drain"


def test_a_run_that_diverges_in_its_warm_up_times_nothing():
    settings = purpose(num_steps=9, warmup_steps=5, max_nonfinite_steps=2)
    outcome, _ = run(broken(1, 2, 3), settings)
    assert (outcome.diverged, outcome.timed) == (3, None)  # one was on its way


@pytest.mark.parametrize(
    ("most", "num_steps", "limit"),
    [(10, 40, 10), (10, 4, 3), (10, 2, 2), (10, 1, 2), (1, 40, 1), (0, 40, 0)],
)
def test_the_limit_is_over_half_of_a_short_run(most, num_steps, limit):
    settings = purpose(num_steps=num_steps, warmup_steps=0, max_nonfinite_steps=most)
    assert nonfinite_limit(settings) == limit


def test_a_step_without_a_label_neither_counts_nor_ends_the_count():
    assert nonfinite_at_end(taken(range(1, 6), skipped=(2, 3, 5), unlabelled=(4,))) == 3
    assert nonfinite_at_end(taken(range(1, 4), unlabelled=(1, 2, 3))) == 0


def test_a_resumed_run_counts_the_steps_before_it():
    settings = purpose(num_steps=9, warmup_steps=0, max_nonfinite_steps=3)
    earlier = taken((1, 2), skipped=(1, 2))
    loop = Loop(broken(1), settings, print, first_step=2, earlier=earlier)
    outcome = loop.run(batch(n) for n in range(9))
    assert outcome.diverged == 3


def test_checkpoints_of_before_outlive_a_divergence(tmp_path):
    request = make_request(tmp_path, keep_checkpoints=1)
    # The second step's update is the first to be made with such a rate.
    request = rated(request, learning_rate=1e30, num_steps=12, max_nonfinite_steps=4)
    record = run_row(request)
    steps = read_lines(StepRecord, request.out / "steps.jsonl")
    assert (record.status, record.num_steps) == ("diverged", len(steps))
    assert nonfinite_at_end(steps) == 4
    assert len(steps) < 12
    first = len(steps) - 3
    assert f"in 4 steps in a row, up to step {len(steps)}: lower" in str(record.reason)
    assert limit_cell(record) == "diverged"
    assert not (request.out / "eval.json").exists()
    kept, _ = newest(request.out / "checkpoints")
    assert kept is not None
    # One step alone may be its batch's fault; from the second on nothing is replaced.
    assert kept.state.step == first
    assert (request.out / "weights" / "model.safetensors").is_file()


def test_a_fine_tuning_that_diverges_fails_as_a_command(tmp_path, caplog):
    path = shortened(tmp_path)
    text = path.read_text().replace("num_steps: 2", "num_steps: 8")
    path.write_text(text.replace("learning_rate: 3.0e-3", "learning_rate: 1.0e+30"))
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["train", str(path), "--out", str(out)])
    assert result.exit_code == 4
    record = read(RunRecord, out / "record.json")
    assert record.status == "diverged"
    assert f"lazytrain: diverged: {record.reason}" in result.stderr
    assert record.skipped_steps == 5 + 1  # one was on its way
    given = ["export", str(out), str(tmp_path / "model"), "--no-verify"]
    assert CliRunner().invoke(export_app, given).exit_code == 0
    assert "diverged" in caplog.text
    assert json.loads((out / "record.json").read_text())["reason"] == record.reason
