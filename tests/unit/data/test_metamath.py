"""Rows from MetaMathQA's and GSM8K's shapes, and what is left out of them."""

import json

import pytest

from lazytrain.config import SyntheticSettings
from lazytrain.data.metamath import load_rows, normalise_records
from lazytrain.data.rows import read_rows, write_rows
from lazytrain.errors import InvalidInput

META = {
    "query": "What is x?",
    "response": "x is 3.\nThe answer is: 3",
    "original_question": "What is 1+2?",
    "type": "GSM_FOBAR",
}
GSM8K = {"question": "How many?", "answer": "1 + 2 = <<1+2=3>>3\n#### 3"}


def test_both_shapes_become_rows():
    loaded = normalise_records([META, GSM8K], "test")
    first, second = loaded.rows
    assert (first.original_question, first.type) == ("What is 1+2?", "GSM_FOBAR")
    assert (second.query, second.original_question) == ("How many?", "How many?")
    assert [row.row_id for row in loaded.rows] == [0, 1]
    assert loaded.skipped == {}


def test_unusable_records_are_counted_and_the_rest_keeps_its_numbering():
    records = [
        META | {"response": "no marker"},
        META | {"response": "The answer is:   "},
        META | {"response": None},
        META | {"query": " "},
        {"query": "only a question"},
        META,
    ]
    loaded = normalise_records(records, "test")
    assert loaded.skipped == {"empty question": 1, "missing field": 1, "no answer": 3}
    assert [row.row_id for row in loaded.rows] == [0]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "the data set is empty"),
        ([{"text": "a", "label": 1}], "found: label, text"),
        ([META | {"response": "none"}], "The answer is: X"),
    ],
)
def test_a_data_set_without_any_usable_row_is_an_error(records, message):
    with pytest.raises(InvalidInput, match=message):
        normalise_records(records, "test")


def test_rows_survive_the_file(tmp_path):
    rows = load_rows("synthetic", SyntheticSettings(num_questions=5)).rows
    rows[0] = rows[0].model_copy(update={"query": "é ☃ \u2028 😀 \\ \n end"})
    write_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows


def test_a_tampered_rows_file_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = load_rows("synthetic", SyntheticSettings(num_questions=2)).rows
    write_rows([rows[0], rows[0]], path)  # a duplicate id
    with pytest.raises(InvalidInput, match="line 2"):
        read_rows(path)
    path.write_text(json.dumps({"row_id": 0}) + "\n")
    with pytest.raises(InvalidInput, match="line 1"):
        read_rows(path)
    with pytest.raises(InvalidInput, match="does not exist"):
        read_rows(tmp_path / "gone.jsonl")
