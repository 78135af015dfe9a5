"""Rows of the sheet run for real on a tiny model, and limits become records."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import default_signals
from transformers import AutoModelForCausalLM

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    PipelineConfig,
    Purpose,
    RunRow,
)
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import generate
from lazytrain.errors import InvalidInput
from lazytrain.records import (
    RunRecord,
    StepRecord,
    canonical_json,
    read,
    sha256_text,
    write,
)
from lazytrain.train import run as run_module
from lazytrain.train.lock import DeviceBusy
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_row


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = generate(40, 0)
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="synthetic")
    write_rows(rows, folder / "rows.jsonl")
    write(manifest, folder / "split.json")
    return folder


def request(data: Path, out: Path, *, budgets=None, **changes) -> RunRequest:
    purpose = Purpose(
        num_steps=2, warmup_steps=1, learning_rate=1e-3, eval_every=1, eval_rows=2
    )
    settings = AcceleratorSettings(
        budgets=budgets or Budgets(), throughput=purpose, quality=purpose
    )
    values = {
        "row": RunRow(
            accelerator="cpu",
            scale="3B",
            system="megatrain",
            model="3B-mini",
            stands_for="Qwen2.5-3B",
            batch=2,
            seq_len=256,
        ),
        "config": PipelineConfig(accelerators={"cpu": settings}),
        "purpose": "throughput",
        "split": data / "split.json",
        "rows": data / "rows.jsonl",
        "out": out,
    }
    return RunRequest(**(values | changes))


def test_a_throughput_row_is_measured(data, tmp_path):
    record = run_row(request(data, tmp_path))
    assert record == read(RunRecord, tmp_path / "record.json")
    assert record.status == "ok"
    assert record.num_parameters == 628_896
    assert record.padded_tokens_per_s == pytest.approx(2 * 256 / record.step_s)
    # Its rows are filled: no token is padding.
    assert record.tokens_per_s == record.padded_tokens_per_s
    expected = 6 * record.num_parameters * record.padded_tokens_per_s / 1e12
    assert record.tflops == pytest.approx(expected)
    assert record.host_peak_bytes > 10**8
    assert record.eval_loss is None
    assert record.host_cap_bytes is None
    made_from = record.provenance.made_from
    assert set(made_from) == {"split", "rows", "config"}
    settings = request(data, tmp_path).config
    assert made_from["config"] == sha256_text(canonical_json(settings))
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    steps = [StepRecord.model_validate_json(line) for line in lines]
    assert [step.step for step in steps] == [1, 2]
    assert {step.padded_tokens for step in steps} == {512}


@pytest.mark.parametrize("system", ["megatrain-single-recompute", "resident"])
def test_other_rivals_see_the_same_first_loss(data, tmp_path, system):
    reference = run_row(request(data, tmp_path / "reference"))
    given = request(data, tmp_path / "other")
    row = given.row.model_copy(update={"system": system})
    record = run_row(given.model_copy(update={"row": row}))
    assert record.status == "ok"
    assert record.first_loss == pytest.approx(reference.first_loss, rel=1e-5)
    assert record.num_parameters == reference.num_parameters


@pytest.mark.parametrize("purpose", ["throughput", "quality"])
def test_only_a_measured_row_wants_the_device_for_itself(
    purpose, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_module, "gpu_context_bytes", lambda _device: 60 << 30)
    monkeypatch.setattr(run_module.capacity, "ENDING_S", 0)
    given = request(data, tmp_path, purpose=purpose)
    if purpose == "quality":
        assert run_row(given).status == "ok"
        return
    with pytest.raises(DeviceBusy, match=r"60\.00 GiB"):
        run_row(given)
    assert not (tmp_path / "record.json").exists()


def test_an_interrupted_run_leaves_no_half_written_file(data, tmp_path):
    given = request(data, tmp_path / "out")
    settings = given.config.accelerators["cpu"]
    endless = settings.throughput.model_copy(update={"num_steps": 10**6})
    config = given.config.model_copy(
        update={
            "accelerators": {"cpu": settings.model_copy(update={"throughput": endless})}
        }
    )
    write(given.model_copy(update={"config": config}), tmp_path / "request.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "lazytrain.train.worker", tmp_path / "request.json"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "1/1000000" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        "steps.partial.jsonl"
    ]
    text = (tmp_path / "out" / "steps.partial.jsonl").read_text()
    assert text.endswith("\n")
    assert StepRecord.model_validate_json(text.splitlines()[-1]).step >= 1


def test_a_quality_row_leaves_weights_that_load(data, tmp_path):
    record = run_row(request(data, tmp_path, purpose="quality"))
    assert record.eval_loss is not None
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    initial = AutoModelForCausalLM.from_pretrained(tmp_path / "initial")
    moved = [
        not torch.equal(a, b)
        for a, b in zip(trained.parameters(), initial.parameters(), strict=True)
    ]
    assert all(moved)
    again = run_row(request(data, tmp_path / "again", purpose="quality"))
    assert again.last_loss == pytest.approx(record.last_loss, abs=1e-5)
    assert again.seeds == record.seeds


def test_a_row_the_host_cannot_hold_says_what_it_asked_for(data, tmp_path):
    budgets = Budgets(host_capacity="1MiB")
    record = run_row(request(data, tmp_path, budgets=budgets))
    assert record.status == "host_oom"
    assert record.requested_bytes == 20 * 628_896
    assert "1.0 MiB" in str(record.reason)
    assert not (tmp_path / "steps.jsonl").exists()


def test_a_row_that_outgrew_a_host_cap_says_its_peak(data, tmp_path):
    # Above what the preflight counts, below what a process with torch takes.
    record = run_row(request(data, tmp_path, budgets=Budgets(host_capacity="100MiB")))
    assert record.host_cap_bytes == 100 << 20
    assert record.status == "host_oom"
    assert record.requested_bytes == record.host_peak_bytes


def test_a_device_limit_in_a_step_is_a_result(data, tmp_path, monkeypatch):
    class Full:
        num_parameters = 0

        def train_step(self, batch, learning_rate):
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 ...")

        def drain(self):
            pass

        def close(self):
            self.closed = True
            raise RuntimeError("the device is in an error state")

    engine = Full()
    monkeypatch.setattr(run_module, "build_engine", lambda *_: engine)
    record = run_row(request(data, tmp_path))
    assert (record.status, record.requested_bytes) == ("oom", 2 << 30)
    assert engine.closed


def test_an_error_that_is_no_limit_propagates(data, tmp_path, monkeypatch):
    def broken(*_arguments):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(run_module, "build_engine", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        run_row(request(data, tmp_path))
    assert not (tmp_path / "record.json").exists()


def test_a_system_that_cannot_run_here_leaves_reason_and_remedy(data, tmp_path):
    given = request(data, tmp_path)
    row = given.row.model_copy(update={"system": "zero3-offload-liger"})
    record = run_row(given.model_copy(update={"row": row}))
    assert record.status == "not_run"
    assert "GPU" in str(record.reason)


def test_a_planned_system_without_a_plan_is_an_error(data, tmp_path):
    given = request(data, tmp_path)
    row = given.row.model_copy(update={"system": "lazytrain"})
    with pytest.raises(InvalidInput, match="--plan"):
        run_row(given.model_copy(update={"row": row}))


def test_a_batch_larger_than_the_data_is_an_error(data, tmp_path):
    given = request(data, tmp_path)
    row = given.row.model_copy(update={"batch": 100_000})
    with pytest.raises(InvalidInput, match="batch"):
        run_row(given.model_copy(update={"row": row}))
