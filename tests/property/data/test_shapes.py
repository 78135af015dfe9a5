"""Whatever a record holds, it becomes a row that can be written, or is counted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.data.rows import content_sha256
from lazytrain.data.shapes import Shape, Unusable, convert

TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
KEYS = st.sampled_from(["role", "content", "from", "value", "text", "type"])
ROLES = st.sampled_from(["user", "assistant", "system", "human", "gpt"])
VALUES = st.recursive(
    SCALARS | ROLES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)
TURNS = st.fixed_dictionaries(
    {"role": ROLES | VALUES, "content": SCALARS | VALUES},
    optional={"from": ROLES | VALUES, "value": SCALARS | VALUES},
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
    assert row.response.strip() not in ("", "nan", "inf", "-inf")
    assert len(content_sha256(row)) == 64
    assert json.loads(row.model_dump_json())["query"] == row.query
