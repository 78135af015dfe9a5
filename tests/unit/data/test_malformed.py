"""Malformed data is a counted row or a named line, whatever is wrong with it."""

import json

import pytest

from lazytrain.data.files import read_records
from lazytrain.data.inspect import inspect_rows
from lazytrain.data.metamath import load_rows, normalise_records
from lazytrain.data.prompts import load_tokenizer
from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.data.rows import read_rows, write_rows
from lazytrain.errors import InvalidInput

GOOD = '{"instruction": "q", "output": "a"}'
DEEP = "[" * 100_000 + "]" * 100_000
LONG = "7" * 5000


def _said(role):
    turns = [{"role": role, "content": "q"}, {"role": "assistant", "content": "a"}]
    return json.dumps({"messages": turns})


def _pair(answer, **more):
    fields = "".join(f', "{key}": {value}' for key, value in more.items())
    return f'{{"instruction": "q", "output": {answer}{fields}}}'


BROKEN = [
    (_said(["user"]), "wrong roles"),
    (_said({"a": 1}), "wrong roles"),
    (_said(None), "wrong roles"),
    (_pair('"a"', history=5), "wrong history"),
    (_pair('"a"', history='{"q": "a"}'), "wrong history"),
    (_pair('"a"', history="true"), "wrong history"),
    (_pair('"a"', history="[5]"), "wrong history"),
    (_pair("NaN"), "number is not finite"),
    (_pair("1e999"), "number is not finite"),
    (_pair("-Infinity"), "number is not finite"),
    (_pair(LONG), "number is not finite"),
    (_pair(f"-{LONG}"), "number is not finite"),
    (_pair('"a"', input="NaN"), "number is not finite"),
    (_pair(r'"\ud800"'), "text is not Unicode"),
    (_pair('"a"', input=r'"x \udfff"'), "text is not Unicode"),
    (_pair('"a"', system=r'"\ud800"'), "text is not Unicode"),
    (_pair('"a"', type=r'"\ud800"'), "text is not Unicode"),
    (_pair('"a"', original_question=r'"\ud800"'), "text is not Unicode"),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_broken_rows_are_counted_and_the_rest_is_used(tmp_path, name, line, reason):
    path = tmp_path / name
    whole = f"[{line},\n{GOOD}]" if name == "a.json" else f"{line}\n{GOOD}\n"
    path.write_text(whole)
    loaded = load_mixture(Mixture(dataset=str(path), dataset_dir=str(tmp_path)))
    assert loaded.skipped == {reason: 1}
    assert [(row.query, row.response) for row in loaded.rows] == [("q", "a")]


def test_what_is_broken_in_an_unused_column_breaks_no_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(_pair("3", score="NaN", hash=LONG, note=r'"\ud800"', id="1e999"))
    loaded = load_mixture(Mixture(dataset=str(path), dataset_dir=str(tmp_path)))
    assert loaded.rows[0].response == "3"
    assert loaded.skipped == {}


def test_an_integer_too_long_to_write_is_counted():
    records = [{"query": "q", "response": 10**5000}, {"query": "q", "response": "a"}]
    loaded = normalise_records(records, "test", needs_answer=False)
    assert loaded.skipped == {"number is not finite": 1}


def test_a_whole_surrogate_pair_is_a_character(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(_pair(r'"\ud83d\ude00"') + "\n" + _pair(r'"\ud83d"'))
    loaded = load_mixture(Mixture(dataset=str(path), dataset_dir=str(tmp_path)))
    assert [row.response for row in loaded.rows] == ["😀"]
    write_rows(loaded.rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == loaded.rows
    tokenizer = load_tokenizer("random", 384)
    inspect_rows(loaded.rows, loaded.skipped, tokenizer, 64)
    assert "skipped, text is not Unicode" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", f"{GOOD}\n{DEEP}\n", "line 2 is nested too deeply"),
        ("a.json", f"[{GOOD},\n\n{DEEP}]", "line 3 is nested too deeply"),
        ("a.json", f"{GOOD}\n{DEEP}\n", "line 2 is nested too deeply"),
        ("a.json", '["]]][[[\\"[",\n' + DEEP + "]", "line 2 is nested too deeply"),
        ("a.json", "[" * 100_000, "line 1 is nested too deeply"),
        ("a.json", "5", "must hold a list of objects, not only 5"),
        ("a.json", "null", "must hold a list of objects, not only None"),
        ("a.json", '"text"', "must hold a list of objects, not only 'text'"),
        ("a.json", "1e999", "must hold a list of objects"),
        ("a.json", "[NaN]", "entry 0 is not an object"),
        ("a.json", LONG, "must hold a list of objects"),
        ("a.jsonl", f"{GOOD}\nnull\n", "line 2 is not an object"),
    ],
)
def test_unreadable_lines_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_records(str(path)))


def test_column_names_that_are_not_unicode_can_be_printed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"\\ud800": 1}')
    with pytest.raises(InvalidInput) as caught:
        load_rows(str(path))
    assert str(caught.value).encode().endswith(b"found: \\ud800")
