"""A run that is refused changes nothing; one that goes on says what was changed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml
from streaming import plan_for, small_config
from typer.testing import CliRunner

from lazytrain.baselines.initial import build_model
from lazytrain.commands.train import app
from lazytrain.data.prompts import load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.records import RunRecord, read
from lazytrain.train import finetune
from lazytrain.train.weights_io import save_pretrained

KEPT = ("rows.jsonl", "split.json", "steps.jsonl", "record.json", "evaluations.jsonl")
ANSWERS = {"before": "sample", "after": "full", "rows": 2, "max_new_tokens": 2}
CONFIG = {
    "weights": "pretrained",
    "data": "synthetic",
    "synthetic": {"num_questions": 10},
    "accelerator": "cpu",
    "batch": 2,
    "seq_len": 128,
    "num_steps": 2,
    "learning_rate": 1e-3,
    "save_every": 1,
    "exact_match": ANSWERS,
    "optimizer": {"threads": 1},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model without a chat template, and a run of two steps that began with it."""
    folder = tmp_path_factory.mktemp("refused")
    config = small_config("3B-mini", 2)
    model = build_model(config, 1, torch.float32, torch.device("cpu"))
    tokenizer = load_tokenizer("random", config.vocab_size)
    tokenizer.chat_template = None
    save_pretrained(folder / "model", model.named_parameters(), config, tokenizer)
    assert train(folder, folder / "run").exit_code == 0
    return folder


@pytest.fixture
def again(trained, tmp_path):
    """A copy of the run, and how to train again in it."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return lambda **changes: train(trained, tmp_path / "run", **changes)


def train(folder, out, **changes):
    """Train below ``out`` along a plan that is not solved again."""
    values = {"model": str(folder / "model")} | CONFIG | changes
    values["optimizer"] = CONFIG["optimizer"] | values["optimizer"]
    path = out.parent / "train.yaml"
    path.write_text(yaml.safe_dump(values | {"out": str(out)}))

    def planned(request, source, *_others):
        row = request.row
        made = plan_for(
            source.config, "CCC", batch=row.batch, seq_len=row.seq_len, state="hybrid"
        )
        finetune.write(made, request.out / "plan.json")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "_write_plan", planned)
        return CliRunner().invoke(app, ["train", str(path)])


def content(out):
    return {name: (out / name).read_bytes() for name in KEPT}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed, data"),
        ({"synthetic": {"num_questions": 11}}, "data"),
        ({"train_on_prompt": True}, "data"),
        ({"num_steps": 1}, "num_steps"),
        ({"template": "chatml"}, "template"),
        ({"executor": {"dtype": "bfloat16"}, "num_steps": 3}, "executor.dtype"),
        ({"optimizer": {"type": "adamw"}, "num_steps": 3}, "optimizer_state"),
        (
            {"optimizer": {"eight_bit_fraction": 0.5}, "num_steps": 3},
            "optimizer_state",
        ),
    ],
)
def test_a_refused_run_leaves_rows_and_results_as_they_were(
    again, tmp_path, changes, named
):
    before = content(tmp_path / "run")
    result = again(**changes)
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith(f"{named} = ")
    assert content(tmp_path / "run") == before
    assert not list((tmp_path / "run").glob(".*"))


def test_a_tokenizer_without_a_template_is_told_and_can_be_resumed(again, caplog):
    result = again(num_steps=3)
    assert result.exit_code == 0, repr(result.exception)
    assert "resuming after step 2" in caplog.text
    assert "no chat template: plain is used" in caplog.text


def test_what_a_run_cannot_do_is_told_before_it_begins(trained, tmp_path, caplog):
    train(trained, tmp_path / "run", save_every=0, num_steps=1, seq_len=128)
    assert "save_every = 0: a run that is cut short begins anew" in caplog.text
    assert "max_position_embeddings" not in caplog.text
    shutil.copytree(trained / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": 64}
    path.write_text(json.dumps(config))
    train(tmp_path, tmp_path / "run", num_steps=1)
    told = "seq_len = 128 is over the model's max_position_embeddings = 64"
    assert told in caplog.text


@pytest.mark.parametrize(("most", "code"), [(10, 4), (0, 0)])
def test_a_run_that_diverged_says_so(trained, tmp_path, caplog, most, code):
    changes = {"learning_rate": 1e30, "num_steps": 3, "max_nonfinite_steps": most}
    result = train(trained, tmp_path / "run", **changes)
    assert result.exit_code == code, repr(result.exception)
    assert "2 of 3 steps changed nothing: loss or gradient was not" in caplog.text


def test_what_was_changed_is_named_with_both_values(again, caplog):
    again(num_steps=3, learning_rate=2e-3, optimizer={"threads": 1, "eps": 1e-7})
    changes = "".join(m for m in caplog.messages if "not as in the saved run" in m)
    assert "learning_rate = 0.002, saved 0.001" in changes
    assert "num_steps = 3, saved 2" in changes
    assert "optimizer.eps = 1e-07, saved 1e-08" in changes
    assert "weights" not in changes


def test_another_model_of_the_same_shapes_is_refused(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copytree(trained / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    path.write_text(json.dumps(config))
    before = content(tmp_path / "run")
    result = train(tmp_path, tmp_path / "run", num_steps=3)
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith("model: rope_parameters = ")
    assert content(tmp_path / "run") == before


def test_a_new_run_shows_nothing_of_an_earlier_ones(again, tmp_path):
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = content(tmp_path / "run")
    none = {"before": "none", "after": "none", "every_epochs": 0}
    result = again(seed=1, exact_match=none)
    assert result.exit_code == 0, repr(result.exception)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not {"eval.json", "evaluations.jsonl", "predictions"} & names
    aside = tmp_path / "run" / "evaluations.jsonl.previous"
    assert aside.read_bytes() == before["evaluations.jsonl"]
    assert "steps.jsonl.previous" not in names  # there are new ones


def test_memory_that_ends_while_a_plan_is_made_is_a_record(trained, tmp_path):
    def full(*_arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes")

    path = tmp_path / "train.yaml"
    values = {"model": str(trained / "model"), "out": str(tmp_path / "run")} | CONFIG
    path.write_text(yaml.safe_dump(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "_write_plan", full)
        result = CliRunner().invoke(app, ["train", str(path)])
    assert result.exit_code == 3, repr(result.exception)
    assert read(RunRecord, tmp_path / "run" / "record.json").status == "host_oom"


def test_rows_left_out_and_test_rows_seen_in_training_are_told(
    trained, tmp_path, caplog
):
    good = [{"query": f"{n}?", "response": f"{n}"} for n in range(8)]
    for name, rows in (("rows", [*good, {"query": "x"}]), ("test", good[:3])):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    data = {"data": str(tmp_path / "rows.jsonl"), "num_steps": 1}
    result = train(trained, tmp_path / "run", **data)
    assert result.exit_code == 0, repr(result.exception)
    assert "rows left out, of 8 kept: missing field: 1" in caplog.text
    assert "share their question" not in caplog.text
    data["test_data"] = str(tmp_path / "test.jsonl")
    result = train(trained, tmp_path / "other", **data)
    assert result.exit_code == 0, repr(result.exception)
    assert "3 of 3 test rows share their question" in caplog.text


def test_what_a_killed_process_left_half_written_is_removed(again, tmp_path):
    run = tmp_path / "run"
    for folder in (".prepared.abc", ".weights.abc"):
        (run / folder).mkdir()
        (run / folder / "rows.jsonl").write_text("half")
    for file in (".rows.jsonl.abc", ".evaluations.jsonl.abc", ".record.json.abc"):
        (run / file).write_text("half")
    (run / ".mine.swp").write_text("not the run's")
    assert again(num_steps=3).exit_code == 0
    assert [path.name for path in run.glob(".*")] == [".mine.swp"]
