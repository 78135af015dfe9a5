"""Tools, calls and answers are read from both shapes, or named as malformed."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet
from tool_rows import (
    CITY,
    ONE,
    SAME,
    SCHEMAS,
    WEATHER,
    asked,
    call,
    calls,
    heard,
    openai,
    row,
    said,
    sharegpt,
    supervised,
)

from lazytrain.data.metamath import normalise_records
from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.data.rows import Message, Row, content_sha256, read_rows, write_rows
from lazytrain.data.shapes import Columns, Shape, Tags

PLAIN = Row(
    row_id=0, query="How many ☃?", response="3", original_question="q", type="AnsAug"
)
TALK = Row(
    row_id=1,
    query="rain",
    query_role="tool",
    response="Rain.",
    original_question="weather?\nrain",
    type="question",
    history=(
        Message(role="user", content="weather?"),
        Message(role="assistant", content="look()"),
    ),
)
# Written by the version that knew no tools.
KNOWN = [
    (
        PLAIN,
        '{"row_id":0,"query":"How many ☃?","response":"3","original_question":"q",'
        '"type":"AnsAug","query_role":"user","history":[],"mask_history":false,'
        '"train_on_prompt":false}\n',
        "d0133c0d3506376c283b4f9f490d346602c5de6112bea5c8306c9cab090f84e0",
    ),
    (
        TALK,
        '{"row_id":1,"query":"rain","response":"Rain.",'
        '"original_question":"weather?\\nrain","type":"question","query_role":"tool",'
        '"history":[{"role":"user","content":"weather?"},'
        '{"role":"assistant","content":"look()"}],"mask_history":false,'
        '"train_on_prompt":false}\n',
        "26e1073fbf99b9c8f9e7d59b2826033c487cf82df6508e580afffa5b9934063d",
    ),
]


@pytest.mark.parametrize(("plain", "line", "digest"), KNOWN)
def test_rows_without_tools_keep_their_bytes_and_hashes(tmp_path, plain, line, digest):
    write_rows([plain], tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == line
    assert content_sha256(plain) == digest


def test_a_tools_turn_without_calls_is_read_as_ever():
    turns = [asked("q"), said("look()"), heard("rain", name="f", tool_call_id="1")]
    talk = openai(*turns, said("Rain."), tools=None)
    assert row(talk).messages[2] == Message(role="tool", content="rain")
    assert row(talk) == row(talk | {"tools": "[]"})


@pytest.mark.parametrize("record", [ONE, SAME])
def test_both_shapes_say_the_same(record, tmp_path):
    made = row(record)
    assert json.loads(made.tools) == SCHEMAS
    user, calling, answer, last = made.messages
    assert (user.content, last.content) == ("Rain?", "Yes ☔.")
    assert [(c.name, json.loads(c.arguments)) for c in calling.calls] == [
        ("weather", CITY)
    ]
    assert calling.content == ""
    assert (answer.role, answer.content, answer.name) == ("tool", "rain ☔", "weather")
    assert answer.call_id == calling.calls[0].call_id != ""
    write_rows([made], tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == [made]


@pytest.mark.parametrize(
    "tools",
    [
        SCHEMAS,
        [WEATHER],
        WEATHER,
        [{"type": "function", **WEATHER}],
        [json.dumps(WEATHER)],
        json.dumps(SCHEMAS),
        json.dumps(WEATHER),
    ],
)
def test_schemas_may_be_flat_wrapped_or_text(tools):
    made = row(ONE | {"tools": tools})
    assert made.tools == row(ONE).tools
    assert "☂" in made.tools


@pytest.mark.parametrize("tools", [None, "", "  ", "null", "[]", [], {}])
def test_no_tools_are_none(tools):
    assert row(ONE | {"tools": tools}).tools == ""


@pytest.mark.parametrize(
    "made",
    [
        call(json.dumps(CITY)),
        call(CITY),
        {"name": "weather", "arguments": CITY},
        {"name": "weather", "arguments": json.dumps(CITY)},
    ],
)
def test_arguments_may_be_an_object_or_its_text(made):
    turns = [asked("Rain?"), calls(made), heard("rain ☔"), said("Yes ☔.")]
    assert row(openai(*turns)) == row(SAME)
    older = {"role": "assistant", "function_call": made}
    answer = {"role": "function", "name": "weather", "content": "rain ☔"}
    assert row(openai(turns[0], older, answer, turns[3])) == row(SAME)


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_may_have_no_arguments(arguments):
    made = row(openai(asked("q"), calls(call(arguments))))
    assert made.calls[0].arguments == "{}"
    assert made.response == ""


def test_parallel_calls_are_answered_by_id_by_name_or_in_their_order():
    two = calls(call({"n": 1}, "f", id="x"), call({"n": 2}, "g", id="y"))
    swapped = [heard("G", tool_call_id="y"), heard("F", tool_call_id="x")]
    made = row(openai(asked("q"), two, *swapped, said("a")))
    assert [(m.name, m.call_id) for m in made.messages[2:4]] == [("g", "y"), ("f", "x")]
    two = calls(call({"n": 1}, "f"), call({"n": 2}, "g"))
    made = row(openai(asked("q"), two, heard("G", name="g"), heard("F"), said("a")))
    ids = [c.call_id for c in made.messages[1].calls]
    assert ids == ["call00000", "call00001"]
    assert [m.call_id for m in made.messages[2:4]] == ids[::-1]
    text = json.dumps([{"name": n, "arguments": {}} for n in "fg"])
    both = sharegpt(
        ("human", "q"), ("function_call", text), ("observation", "[]"), ("gpt", "a")
    )
    assert [c.name for c in row(both).messages[1].calls] == ["f", "g"]


def test_a_tool_may_answer_with_nothing():
    made = row(openai(asked("q"), calls(call({})), heard(""), said("Done.")))
    assert made.query == ""


def test_roles_of_calls_and_answers_can_be_mapped():
    names = {"human": "user", "function_call": "fn", "observation": "obs"}
    talk = [
        {"role": names.get(turn["from"], "assistant"), "content": turn["value"]}
        for turn in SAME["conversations"]
    ]
    tags = Tags(function_tag="fn", observation_tag="obs")
    shape = Shape(formatting="sharegpt", tags=tags)
    record = {"conversations": talk, "tools": SAME["tools"]}
    loaded = normalise_records([record], "test", shape, needs_answer=False)
    assert loaded.rows == [row(SAME)]


def _described(tmp_path, columns, *records):
    (tmp_path / "a.json").write_text(json.dumps(records))
    entry = {"file_name": "a.json", "formatting": "sharegpt", "columns": columns}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"a": entry}))
    return load_mixture(Mixture(dataset="a", dataset_dir=str(tmp_path))).rows


def test_the_column_of_tools_can_be_mapped_or_taken_out(tmp_path, caplog):
    record = sharegpt(("human", "q"), ("gpt", "a"))
    moved = {"functions": record["tools"], "tools": "a hammer"} | {
        "conversations": record["conversations"]
    }
    assert _described(tmp_path, {"tools": "functions"}, moved)[0].tools
    assert _described(tmp_path, {"tools": ""}, moved)[0].tools == ""
    assert not caplog.messages
    assert _described(tmp_path, {"tools": "nope"}, moved)[0].tools == ""
    assert caplog.messages == [
        "a: its description maps tools: nope, and no row has that"
    ]


def test_questions_and_answers_may_describe_tools_too():
    for record in (
        {"query": "q", "response": "a"},
        {"instruction": "q", "output": "a"},
    ):
        assert json.loads(row(record | {"tools": SCHEMAS}).tools) == SCHEMAS
    shape = Shape(columns=Columns(tools="functions"))
    record = {"query": "q", "response": "a", "functions": [WEATHER]}
    loaded = normalise_records([record], "test", shape, needs_answer=False)
    assert json.loads(loaded.rows[0].tools) == SCHEMAS


def _write(records, path):
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        datasets.Dataset.from_list(records).save_to_disk(str(path))


@pytest.mark.parametrize("name", ["a.parquet", "saved"])
def test_what_a_table_adds_to_other_rows_is_taken_out(tmp_path, name):
    """All objects of a table's column have the keys of all rows, absent ones null."""
    other = {"name": "add", "parameters": {"properties": {"n": {"type": "integer"}}}}
    records = [
        openai(asked("q"), calls(call({"n": 1}, "add")), tools=[other]),
        openai(asked("q"), calls(call({"city": "A"})), tools=[WEATHER]),
    ]
    _write(records, tmp_path / name)
    rows = load_mixture(Mixture(dataset=str(tmp_path / name))).rows
    expected = [row(record) for record in records]
    for found in (lambda made: made.tools, lambda made: made.calls[0].arguments):
        texts = [list(map(found, made)) for made in (rows, expected)]
        assert list(map(json.loads, texts[0])) == list(map(json.loads, texts[1]))


def test_the_documented_rows_say_the_same():
    text = (
        (Path(__file__).parents[3] / "config/README.md")
        .read_text()
        .split("### Rows with tools")[1]
    )
    block = text.split("```")[1]
    records = [json.loads(part) for part in block.strip().split("\n\n")]
    assert ["messages" in record for record in records] == [True, False]
    said_of = [supervised(row(record)) for record in records]
    assert said_of[0] == said_of[1]
    assert said_of[0].startswith(
        '<call>{"name": "weather", "arguments": {"city": "Oslo"'
    )
