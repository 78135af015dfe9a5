"""What would cost all answers is refused before the first one is asked for."""

from __future__ import annotations

import json
import logging

import pytest
from tool_rows import ONE, call, calls, openai, row
from tool_rows import asked as question
from typer.testing import CliRunner

from lazytrain.commands.evaluate import app
from lazytrain.data.rows import write_rows
from lazytrain.data.split import given_split
from lazytrain.errors import InvalidInput
from lazytrain.evaluate import run as run_module
from lazytrain.evaluate.evaluation import answer_budget, file_test_set, split_test_set
from lazytrain.evaluate.exact_match import is_number, judge
from lazytrain.records import write

GOOD = {"query": "1 + 1?", "answer": "#### 2"}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Run the command with some options; the model is never reached."""
    (tmp_path / "test.jsonl").write_text(json.dumps(GOOD))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    def reached(*_arguments):
        pytest.fail("the model was loaded")

    monkeypatch.setattr(run_module, "load_model", reached)

    def ask(**options):
        given = {"weights": tmp_path / "model", "out": tmp_path / "eval.json"}
        given |= {"data": tmp_path / "test.jsonl"} | options
        words = [str(w) for n, v in given.items() for w in (f"--{n}", v)]
        return CliRunner().invoke(app, ["evaluate", *words]).exception

    return ask


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "/proc/nothing/eval.json"}, "^out = .*give another"),
        ({"out": "/dev/null/eval.json"}, "^out = .*is no folder"),
        ({"out": "/tmp"}, "^out = '/tmp': is a folder; name a file"),
        ({"split": "split.json"}, "^data, split = .*one of the two"),
        ({"initial-weights": "/nothing"}, "^weights = '/nothing': there is no such"),
    ],
)
def test_it_is_refused_at_once(asked, options, message):
    error = asked(**options)
    assert isinstance(error, InvalidInput)
    with pytest.raises(InvalidInput, match=message):
        raise error


def test_a_folder_that_holds_no_model_says_what_it_is(tmp_path):
    from lazytrain.evaluate.initial import check_is_model

    for name, inside, message in (
        ("run", "weights/config.json", "is a run; give its weights, .*weights"),
        ("checkpoint", "manifest.json", "lazytrain export"),
        ("unfinished", "checkpoints/x", "lazytrain export"),
        ("other", "x", r"holds no config\.json"),
    ):
        path = tmp_path / name / inside
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        with pytest.raises(InvalidInput, match=message):
            check_is_model(tmp_path / name)


def test_rows_that_are_not_asked_are_told(tmp_path, caplog):
    path = tmp_path / "test.jsonl"
    rows = [GOOD, {"query": "2?", "answer": "It is 2"}, {"query": "3?"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level(logging.WARNING):
        test = file_test_set(str(path))
    assert (len(test.rows), test.num_all) == (1, 1)
    assert "not asked: missing field: 1, no answer: 1" in caplog.text


def test_an_answer_may_be_a_number_by_itself(tmp_path):
    path = tmp_path / "test.jsonl"
    answers = ["878", 12, "$1,200", "2 apples", "\\frac{1}{2}"]
    rows = [{"query": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    path.write_text("\n".join(map(json.dumps, rows)))
    test = file_test_set(str(path))
    assert [row.response for row in test.rows] == [str(answer) for answer in answers]
    assert judge(test.rows[2], "600 + 600 = 1200. The answer is: 1200").correct
    assert not judge(test.rows[2], "1200").correct  # the model marks its answer
    # Such an answer does not say how many tokens its solution takes.
    assert answer_budget(test, pytest.fail) == 1024


@pytest.mark.parametrize("text", ["", "2x", "1 and 2", "2\n3", "3" * 41, "1/0", "nan"])
def test_other_texts_are_no_number_by_themselves(text):
    assert not is_number(text)


def test_a_file_without_an_answer_says_what_one_is(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"query": "2?", "answer": "It is 2"}))
    with pytest.raises(InvalidInput, match=r"no answer: 1\).*or be a number by itself"):
        file_test_set(str(path))


def test_rows_that_end_in_a_call_are_not_asked(tmp_path, caplog):
    last = row(openai(question("q"), calls(call({}))))
    rows, manifest = given_split([row(ONE)], [row(ONE), last], source="s")
    write_rows(rows, tmp_path / "rows.jsonl")
    write(manifest, tmp_path / "split.json")
    with caplog.at_level(logging.WARNING):
        test = split_test_set(tmp_path / "split.json", tmp_path / "rows.jsonl")
    assert [r.response for r in test.rows] == ["Yes ☔."]
    assert test.num_all == 2
    assert "1 of 2 test rows end in a call of a tool" in caplog.text
