"""`lazytrain train`: one file in, a planned and trained model out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazytrain.commands.train import app
from lazytrain.config import load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.records import RunRecord, read
from lazytrain.schedule.plan import Plan
from lazytrain.train.finetune import FineTune

EXAMPLE = Path(__file__).parents[3] / "config" / "examples" / "finetune-laptop.yaml"


def shortened(tmp_path):
    text = EXAMPLE.read_text()
    for old, new in (
        ("num_steps: 40", "num_steps: 2"),
        ("eval_every: 20", "eval_every: 0"),
        ("num_questions: 400", "num_questions: 40"),
        ("batch: 8", "batch: 2"),
        ("eval_rows: 32", "eval_rows: 4"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "short.yaml"
    path.write_text(text)
    return path


def test_the_example_trains_along_its_own_plan(tmp_path):
    out = tmp_path / "run"
    arguments = ["train", str(shortened(tmp_path)), "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    record = read(RunRecord, out / "record.json")
    assert json.loads(result.stdout.splitlines()[-1])["status"] == "ok"
    assert record.plan_sha256 == read(Plan, out / "plan.json").sha256
    assert record.eval_loss is not None
    assert (out / "weights" / "model.safetensors").exists()
    again = load_yaml(FineTune, shortened(tmp_path)).model_copy(
        update={"out": tmp_path / "again", "plan": out / "plan.json"}
    )
    assert again.row("cpu").batch == 2


def test_packed_rows_hold_more_tokens(tmp_path):
    path = shortened(tmp_path)
    text = path.read_text().replace("seq_len: 256", "seq_len: 1024")
    text = text.replace("pack: false", "pack: true").replace("64MiB", "256MiB")
    path.write_text(text)
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    steps = [json.loads(line) for line in (out / "steps.jsonl").open()]
    assert all(step["padded_tokens"] == 2 * 1024 for step in steps)
    # Rows of this length hold two documents and more; alone, each fills a quarter.
    assert all(step["real_tokens"] > 0.7 * 2 * 1024 for step in steps)


def test_an_unknown_key_is_named(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(EXAMPLE.read_text() + "lerning_rate: 1\n")
    with pytest.raises(InvalidInput, match="lerning_rate"):
        load_yaml(FineTune, path)
