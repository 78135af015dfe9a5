"""Whatever a record holds, it becomes a row that can be written, or is counted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.data.rows import content_sha256
from lazytrain.data.shapes import Shape, Unusable, convert

TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "from",
        "value",
        "text",
        "type",
        "function",
        "name",
        "arguments",
        "id",
    ]
)
ROLES = st.sampled_from(
    ["user", "assistant", "system", "human", "gpt", "tool", "function_call"]
)
VALUES = st.recursive(
    SCALARS | ROLES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)
CALLS = st.fixed_dictionaries(
    {"name": TEXT | VALUES}, optional={"arguments": VALUES | st.just('{"a": [1]}')}
)
TURNS = st.fixed_dictionaries(
    {"role": ROLES | VALUES, "content": SCALARS | VALUES},
    optional={
        "from": ROLES | VALUES,
        "value": SCALARS | VALUES | CALLS.map(json.dumps),
        "tool_calls": st.lists(CALLS, max_size=2) | VALUES,
        "function_call": CALLS | VALUES,
        "tool_call_id": SCALARS,
        "name": SCALARS,
    },
)
TALKS = st.lists(TURNS, max_size=3) | VALUES
RECORDS = st.fixed_dictionaries(
    {"instruction": SCALARS | VALUES, "output": SCALARS | VALUES},
    optional={
        "input": VALUES,
        "system": VALUES,
        "history": VALUES,
        "type": VALUES,
        "original_question": VALUES,
        "tools": st.lists(CALLS, max_size=2) | VALUES,
        "messages": TALKS,
        "conversations": TALKS,
    },
)


@pytest.mark.parametrize("formatting", ["auto", "alpaca", "sharegpt", "openai"])
@settings(max_examples=150)
@given(record=RECORDS)
def test_a_record_is_a_row_or_unusable(formatting, record):
    try:
        row = convert(record, Shape(formatting=formatting), 0)
    except Unusable:
        return
    assert row.calls or row.response.strip() not in ("", "nan", "inf", "-inf")
    for call in [call for turn in row.messages for call in turn.calls]:
        assert isinstance(json.loads(call.arguments), dict)
    assert all(schema["function"]["name"] for schema in json.loads(row.tools or "[]"))
    assert type(row).model_validate_json(row.model_dump_json()) == row
    assert len(content_sha256(row)) == 64
    assert json.loads(row.model_dump_json())["query"] == row.query
