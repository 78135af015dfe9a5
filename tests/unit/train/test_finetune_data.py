"""`lazytrain train` on people's own data: every shape, mixed, and everything wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from streaming import small_config
from tool_rows import ONE, SAME, row, speaking
from tool_rows import supervised as loss_on
from typer.testing import CliRunner

from lazytrain.commands.train import app
from lazytrain.config import load_yaml
from lazytrain.data.prompts import IGNORE
from lazytrain.data.rows import read_rows
from lazytrain.errors import InvalidInput
from lazytrain.records import (
    RunRecord,
    SplitManifest,
    StepRecord,
    read,
    read_lines,
    write,
)
from lazytrain.train.finetune import FineTune, prepare_data
from lazytrain.train.planning import make_plan
from lazytrain.train.request import RunRequest, load_data

BATCH, SEQ_LEN = 2, 192
ALPACA = [
    {"instruction": f"Add one to {n}.", "input": "", "output": str(n + 1)}
    for n in range(12)
]
SHAREGPT = [
    {
        "conversations": [
            {"from": "human", "value": f"Say {n}."},
            {"from": "gpt", "value": f"{n}"},
            {"from": "human", "value": "Again, please."},
            {"from": "gpt", "value": f"{n}, {n}"},
        ]
    }
    for n in range(8)
]
OPENAI = [
    {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": f"Größe {n}? 大きさ 🦕"},
            {"role": "assistant", "content": f"Es sind {n} m."},
        ]
    }
    for n in range(6)
]
PAIRS = [
    {"query": f"What is {n} and {n}?", "response": f"The answer is: {2 * n}"}
    for n in range(10)
]
INFO = {
    "alpaca": {"file_name": "alpaca.json"},
    "talks": {"file_name": "talks.json", "formatting": "sharegpt"},
    "chats": {"file_name": "chats.jsonl", "formatting": "openai"},
}


# What a plan depends on.
VALUES = {
    "model": "3B-mini",
    "weights": "random",
    "accelerator": "cpu",
    "batch": BATCH,
    "seq_len": SEQ_LEN,
    "learning_rate": 1e-3,
    "budgets": {"gpu_cap": "64MiB"},
    "optimizer": {"threads": 1},
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """One plan for all runs here, beside its instance: what is tested is the data."""
    out = tmp_path_factory.mktemp("plan")
    asked = FineTune(**VALUES, data="alpaca", out=out, num_steps=3)
    made = make_plan(asked.row("cpu"), asked.pipeline("cpu"), small_config(), out)
    write(made, out / "plan.json")
    return out / "plan.json"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dataset_info.json").write_text(json.dumps(INFO))
    (tmp_path / "alpaca.json").write_text(json.dumps(ALPACA))
    (tmp_path / "talks.json").write_text(json.dumps(SHAREGPT))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in OPENAI)
    (tmp_path / "chats.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in PAIRS))
    return tmp_path


def settings(folder: Path, plan: Path | None, **changes) -> Path:
    """Write a configuration file and return its path."""
    values = VALUES | {
        "data": "alpaca",
        "dataset_dir": str(folder),
        "out": str(folder / "run"),
        "plan": plan and str(plan),
        "num_steps": 3,
        "train_fraction": 0.7,
        "eval_rows": 4,
        "exact_match": {},
    }
    values |= changes
    path = folder / "train.yaml"
    given = {name: value for name, value in values.items() if value is not None}
    path.write_text(yaml.safe_dump(given))
    return path


def train(path: Path):
    """Run the command; return the folder it left."""
    result = CliRunner().invoke(app, ["train", str(path)])
    if result.exception is not None:
        raise result.exception
    return Path(yaml.safe_load(path.read_text())["out"])


def test_one_run_mixes_every_shape(folder, plan):
    path = settings(
        folder, plan, data=["alpaca", "talks", "chats", str(folder / "pairs.jsonl")]
    )
    out = train(path)
    rows = read_rows(out / "rows.jsonl")
    assert len(rows) == len(ALPACA) + len(SHAREGPT) + len(OPENAI) + len(PAIRS)
    assert sum(len(row.history) == 2 for row in rows) == len(SHAREGPT)
    assert any("大きさ 🦕" in row.query for row in rows)
    assert read(RunRecord, out / "record.json").status == "ok"
    assert not any(s.skipped for s in read_lines(StepRecord, out / "steps.jsonl"))


@pytest.mark.parametrize(("strategy", "counts"), [("under", (8, 4)), ("over", (16, 8))])
def test_weights_decide_the_shares(folder, plan, strategy, counts):
    path = settings(
        folder,
        plan,
        data={"alpaca": 2.0, "talks": 1.0},
        strategy=strategy,
        max_samples=8,
    )
    rows = read_rows(train(path) / "rows.jsonl")
    kinds = Counter(bool(row.history) for row in rows)
    assert (kinds[False], kinds[True]) == counts


def supervised(out: Path) -> int:
    """Return the labels of all steps together."""
    steps = read_lines(StepRecord, out / "steps.jsonl")
    return sum(step.supervised_tokens for step in steps)


def test_masks_are_those_asked_for(folder, plan):
    found = {}
    for name, options in {
        "all turns": {},
        "last turn": {"mask_history": True},
        "everything": {"train_on_prompt": True},
    }.items():
        options |= {"data": "talks", "out": str(folder / name)}
        path = settings(folder, plan, num_steps=2, **options)
        found[name] = supervised(train(path))
    assert found["last turn"] < found["all turns"] < found["everything"]


def test_a_named_template_is_trained_and_saved(folder, plan):
    out = train(settings(folder, plan, template="alpaca", num_steps=1))
    from transformers import AutoTokenizer

    saved = AutoTokenizer.from_pretrained(out / "weights")
    assert "### Instruction" in saved.chat_template


def test_test_rows_may_be_a_data_set_of_their_own(folder, plan):
    path = settings(
        folder,
        plan,
        data=str(folder / "pairs.jsonl"),
        test_data="alpaca",
        num_steps=1,
    )
    out = train(path)
    manifest = read(SplitManifest, out / "split.json")
    assert manifest.mode == "given"
    assert len(manifest.train.row_ids) == len(PAIRS)
    assert len(manifest.test.row_ids) == len(ALPACA)


def test_epochs_become_steps(folder, plan):
    """Twelve rows, seven tenths of them to train on, two in a batch."""
    path = settings(folder, plan, num_steps=None, num_epochs=2.5)
    record = read(RunRecord, train(path) / "record.json")
    train_rows = len(read(SplitManifest, folder / "run" / "split.json").train.row_ids)
    assert record.num_steps == int(2.5 * train_rows / BATCH)


def test_packed_epochs_have_fewer_steps(folder):
    # Borders take memory too, so that the plan is another one.
    path = settings(
        folder, None, num_steps=None, num_epochs=4, pack=True, train_fraction=0.9
    )
    steps = read_lines(StepRecord, train(path) / "steps.jsonl")
    # Rows of about 50 tokens: three fill a row of 192.
    assert len(steps) < 4 * 11 / BATCH / 2
    assert all(step.real_tokens > 0.6 * BATCH * SEQ_LEN for step in steps)


def test_like_lengths_share_a_batch(folder, plan):
    data = ["alpaca", str(folder / "pairs.jsonl")]
    waste = {}
    for grouped in (False, True):
        changes = {"group_by_length": grouped, "out": str(folder / f"run-{grouped}")}
        path = settings(folder, plan, data=data, num_steps=7, **changes)
        steps = read_lines(StepRecord, train(path) / "steps.jsonl")
        real = sum(step.real_tokens for step in steps)
        waste[grouped] = 1 - real / sum(step.padded_tokens for step in steps)
    assert waste[True] < waste[False]


def test_two_ways_to_say_how_long_or_how_packed_are_refused(folder, plan):
    for changes in (
        {"num_epochs": 1.0},
        {"num_steps": None},
        {"pack": True, "group_by_length": True},
    ):
        with pytest.raises(InvalidInput, match="give either"):
            load_yaml(FineTune, settings(folder, plan, **changes))


def test_broken_records_are_counted_and_the_rest_trains(folder, plan):
    broken = [
        {"messages": []},
        {"messages": [{"role": "user", "content": "alone"}]},
        {"messages": [{"role": "assistant", "content": "first"}]},
        {"messages": [{"role": "narrator", "content": "?"}]},
        {"messages": [{"role": "user"}]},
        {"text": "no field of any shape"},
        {"id": 7, "messages": OPENAI[0]["messages"]},
        {"id": 7, "messages": OPENAI[0]["messages"]},
    ]
    text = "".join(json.dumps(row) + "\n" for row in [*broken, *OPENAI])
    (folder / "chats.jsonl").write_text(text, encoding="utf-8")
    out = train(settings(folder, plan, data="chats", num_steps=1))
    assert read(SplitManifest, out / "split.json").skipped == {
        "duplicate id": 1,
        "empty messages": 1,
        "missing field": 2,
        "no answer": 1,
        "wrong roles": 2,
    }


def test_a_very_long_row_is_left_out_and_the_rest_trains(folder, plan):
    long = {"instruction": "x" * 50_000, "output": "y"}
    (folder / "alpaca.json").write_text(json.dumps([*ALPACA, long]))
    out = train(settings(folder, plan, num_steps=6))
    assert read(RunRecord, out / "record.json").num_steps == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"query": "a", "response": "b"}\n{"query": "\xff"}\n',
            "line 2 is not UTF-8",
        ),
        (b'{"query": "a", "response": "b"}\n{"query": \n', "line 2"),
        (b"", "the file is empty"),
        (b'{"a": 1}\n', "its rows need"),
        (b'{"query": "a", "response": "b"}\n' * 3, "cannot be divided"),
    ],
)
def test_unusable_files_say_where_and_why(folder, plan, content, message):
    (folder / "bad.jsonl").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        train(settings(folder, plan, data=str(folder / "bad.jsonl")))
    assert not (folder / "run" / "record.json").exists()


def test_fewer_rows_than_a_batch_are_an_error_with_a_way_on(folder, plan):
    few = folder / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in PAIRS[:2]))
    with pytest.raises(InvalidInput, match="fewer than one batch"):
        train(settings(folder, plan, data=str(few)))


def test_an_unknown_name_lists_the_known_ones(folder, plan):
    with pytest.raises(InvalidInput, match="alpaca, chats, talks"):
        train(settings(folder, plan, data="alpacca"))


def test_rows_whose_tools_are_not_rendered_are_left_out_and_counted(folder, plan):
    lines = [json.dumps(record) for record in (ONE, SAME)]
    (folder / "tools.jsonl").write_text("\n".join(lines))
    mixed = ["alpaca", str(folder / "tools.jsonl")]
    with pytest.raises(InvalidInput, match=r"tools\.jsonl'.*leaves out tools: 2"):
        train(settings(folder, plan, data=mixed))
    lines += [json.dumps(PAIRS[0])]
    (folder / "tools.jsonl").write_text("\n".join(lines))
    out = train(settings(folder, plan, data=mixed, num_steps=1))
    reason = f"{mixed[1]}: chat template leaves out tools"
    assert read(SplitManifest, out / "split.json").skipped == {reason: 2}
    assert len(read_rows(out / "rows.jsonl")) == len(ALPACA) + 1


def test_rows_with_tools_reach_the_batches(folder, plan):
    """What a step is given is what the loss is meant to be taken over."""
    lines = [json.dumps(record) for record in (ONE, SAME) * 2]
    (folder / "tools.jsonl").write_text("\n".join(lines))
    tools = str(folder / "tools.jsonl")
    asked = load_yaml(
        FineTune, settings(folder, None, data=tools, test_data="alpaca", seq_len=512)
    )
    tokenizer = speaking()
    rows, split = prepare_data(asked, folder, tokenizer)
    request = RunRequest(
        row=asked.row("cpu"),
        config=asked.pipeline("cpu"),
        purpose="quality",
        split=split,
        rows=rows,
        out=folder,
    )
    batch = next(load_data(request, tokenizer).train)
    for ids in batch.labels:
        said = tokenizer.decode(ids[ids != IGNORE])
        assert said == loss_on(row(ONE))
