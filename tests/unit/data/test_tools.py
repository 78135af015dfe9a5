"""Tools, calls and answers are read from both shapes, or named as malformed."""

from __future__ import annotations

import json
import logging

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
)

from lazytrain.data.metamath import normalise_records
from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.data.rows import Message, Row, content_sha256, read_rows, write_rows
from lazytrain.data.shapes import Columns, Shape
from lazytrain.errors import InvalidInput

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


BAD_TOOLS = [
    ("[{", "tools is not JSON", "is not JSON: Expecting"),
    ('["{"]', "tools is not JSON", "is not JSON: Expecting"),
    ("5", "tools holds no function", "list of function schemas"),
    ([5], "tools holds no function", "list of function schemas"),
    ([{"description": "x"}], "tools holds no function", "each with a name"),
    ([{"type": "web_search"}], "tools holds no function", "each with a name"),
    ([{"type": "function", "function": 3}], "tools holds no function", "with a name"),
]


@pytest.mark.parametrize(("tools", "reason", "remedy"), BAD_TOOLS)
def test_malformed_tools_name_field_row_and_remedy(tools, reason, remedy, caplog):
    records = [ONE, ONE | {"tools": tools}, ONE | {"tools": tools}]
    with caplog.at_level(logging.WARNING):
        loaded = normalise_records(records, "talks.jsonl", needs_answer=False)
    assert len(loaded.rows) == 1
    assert loaded.skipped == {reason: 2}
    told = f"talks.jsonl: 2 rows left out, {reason}; the first is row 2: tools = "
    assert caplog.messages[0].startswith(told)
    assert remedy in caplog.messages[0]
    with pytest.raises(InvalidInput, match=rf"{reason}: 1.; row 1: tools = .*{remedy}"):
        normalise_records(records[1:2], "talks.jsonl", needs_answer=False)


BAD_CALLS = [
    ("tool_calls", [call("{")], "arguments are no JSON object"),
    ("tool_calls", [call("[1]")], "arguments are no JSON object"),
    ("tool_calls", [call(5)], "arguments are no JSON object"),
    ("tool_calls", [call({}, name="")], "a call has no name"),
    ("tool_calls", ["f()"], "a call is not JSON"),
    ("tool_calls", [7], "a call has no name"),
    ("tool_calls", [{"type": "custom", "custom": {}}], "a call has no name"),
    ("function_call", "look()", "a call is not JSON"),
    ("tool_calls", [call({"n": float("nan")})], "number is not finite"),
    ("tool_calls", [call('{"n": 1e999}')], "number is not finite"),
    ("tool_calls", [call({"n": "\ud800"})], "text is not Unicode"),
    ("tool_calls", [call('{"n":' * 99 + "1" + "}" * 99)], "nested too deeply"),
]


@pytest.mark.parametrize(("field", "made", "reason"), BAD_CALLS)
def test_malformed_calls_are_counted(field, made, reason):
    turn = {"role": "assistant", "content": None, field: made}
    bad = openai(asked("q"), turn, heard("x"), said("a"))
    loaded = normalise_records([ONE, bad], "test", needs_answer=False)
    assert loaded.skipped == {reason: 1}


@pytest.mark.parametrize("value", ["look()", "", "[]", '{"arguments": {}}'])
def test_a_call_of_sharegpt_that_is_no_call_is_named(value, caplog):
    bad = sharegpt(("human", "q"), ("function_call", value))
    with caplog.at_level(logging.WARNING):
        loaded = normalise_records([SAME, bad], "test", needs_answer=False)
    assert sum(loaded.skipped.values()) == 1
    assert "the first is row 2: function_call = " in caplog.messages[0]
    assert '{"name": ..., "arguments": {...}}' in caplog.messages[0]


TWO = calls(call({}, id="x"), call({}, id="y"))
ORDERS = [
    ([TWO, heard("1"), heard("2"), heard("3"), said("a")], "wrong roles"),
    ([TWO, heard("1", tool_call_id="z"), said("a")], "an answer names no call"),
    ([TWO, heard("1"), asked("q"), said("a")], "wrong roles"),
    ([said("t"), heard("1"), heard("2"), said("a")], "wrong roles"),
    ([TWO, TWO], "wrong roles"),
    ([TWO, heard("1")], "no answer"),
    ([{"role": "tool", "content": "x", "tool_calls": [call({})]}], "wrong roles"),
]


@pytest.mark.parametrize(("turns", "reason"), ORDERS)
def test_turns_out_of_order_are_counted(turns, reason):
    loaded = normalise_records(
        [ONE, openai(asked("q"), *turns)], "test", needs_answer=False
    )
    assert loaded.skipped == {reason: 1}


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
