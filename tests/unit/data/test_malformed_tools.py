"""Malformed tools and calls are counted, and the first is named by row and field."""

from __future__ import annotations

import logging
import re

import pytest
from tool_rows import ONE, SAME, asked, call, calls, heard, openai, said, sharegpt

from lazytrain.data.metamath import normalise_records
from lazytrain.errors import InvalidInput

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
    ("tool_calls", [call(False)], "arguments are no JSON object"),
    ("tool_calls", [call([])], "arguments are no JSON object"),
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
def test_malformed_calls_are_counted_and_named(field, made, reason, caplog):
    turn = {"role": "assistant", "content": None, field: made}
    bad = openai(asked("q"), turn, heard("x"), said("a"))
    with caplog.at_level(logging.WARNING):
        loaded = normalise_records([ONE, bad], "test", needs_answer=False)
    assert loaded.skipped == {reason: 1}
    first = rf"{reason}; the first is row 2: {field}(\.arguments)? = .+: .*give|flatter"
    assert re.search(first, caplog.text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [(float("nan"), "number is not finite"), ("\ud800", "text is not Unicode")],
)
def test_descriptions_that_json_lacks_are_named(value, reason, caplog):
    tools = [{"name": "f", "parameters": {"default": value}}]
    with caplog.at_level(logging.WARNING):
        loaded = normalise_records(
            [ONE, ONE | {"tools": tools}], "test", needs_answer=False
        )
    assert loaded.skipped == {reason: 1}
    assert f"{reason}; the first is row 2: tools = " in caplog.text
    assert "give finite numbers and whole characters" in caplog.text


def test_calls_too_deep_to_be_shown_are_counted():
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    bad = openai(asked("q"), {"role": "assistant", "content": None})
    bad["messages"][1]["tool_calls"] = deep
    loaded = normalise_records([ONE, bad], "test", needs_answer=False)
    assert loaded.skipped == {"a call has no name": 1}


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
