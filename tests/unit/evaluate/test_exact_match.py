"""Which answers count as equal, and how predictions are counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.data.rows import Row
from lazytrain.evaluate.exact_match import (
    by_type,
    distinct_answers,
    exact_match,
    fraction_correct,
    judge,
    majority_baseline,
    normalise,
)
from lazytrain.evaluate.table import by_type_table
from lazytrain.evaluated import EvalRecord
from lazytrain.provenance import collect

EQUAL = [
    ("3", "3."),
    ("3", "+3"),
    ("3", "3.0"),
    ("3", "03"),
    ("1,234", "1234"),
    ("1,234,567.50", "1234567.5"),
    ("$5", "5"),
    ("\\$5.00", "5 dollars"),
    ("12 eggs", "12"),
    ("50%", "50"),
    ("90^\\circ", "90"),
    ("0.5", "1/2"),
    ("\\frac{1}{2}", ".5"),
    ("\\dfrac12", "2/4"),
    ("1 1/2", "3/2"),
    ("-\\frac{3}{4}", "-0.75"),
    ("$\\boxed{42}$", "42"),
    ("\\text{blue}", "Blue"),
    ("x  + 1", "x + 1"),
]
DIFFERENT = [
    ("3", "4"),
    ("3", "-3"),
    ("12", "1,2"),
    ("1234", "1,23,4"),
    ("2x", "2"),
    ("2x", "2y"),
    ("(1,2)", "(12)"),
    ("1/0", "0"),
    ("blue", "red"),
    ("3 apples and 4", "3"),
    ("0.333", "1/3"),
    ("", "0"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_answers(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_answers(one, other):
    assert normalise(one) != normalise(other)


@settings(max_examples=200)
@given(st.integers(-(10**9), 10**9))
def test_thousands_commas_never_matter(number):
    assert normalise(f"{number:,}") == normalise(str(number)) == str(number)


@settings(max_examples=200)
@given(st.text(max_size=20))
def test_normalising_never_fails_and_is_stable(text):
    assert normalise(normalise(text)) == normalise(text)


def test_a_missing_answer_matches_nothing():
    assert not exact_match(None, "3")
    assert not exact_match("3", None)
    assert not exact_match(None, None)


def _row(row_id, answer, kind):
    return Row(
        row_id=row_id,
        query="q",
        response=f"The answer is: {answer}",
        original_question="q",
        type=kind,
    )


def test_predictions_are_counted_by_type():
    rows = [_row(0, "1", "SV"), _row(1, "2", "SV"), _row(2, "3", "FOBAR")]
    texts = ["The answer is: 1.0", "I do not know", "#### 4"]
    predictions = [judge(row, text) for row, text in zip(rows, texts, strict=True)]
    assert by_type(predictions) == {"FOBAR": (0, 1), "SV": (1, 2)}
    assert fraction_correct(predictions) == pytest.approx(1 / 3)
    assert [p.answer for p in predictions] == ["1.0", None, "4"]


def test_the_majority_baseline_comes_from_training_answers():
    train = [_row(n, answer, "t") for n, answer in enumerate(["1", "1.0", "2", "3"])]
    test = [_row(n, answer, "t") for n, answer in enumerate(["1", "2", "2", "2"])]
    assert majority_baseline(train, test) == 0.25
    assert majority_baseline([], test) == 0.0
    assert distinct_answers(train) == 3


def test_the_table_shows_each_type_before_and_after():
    record = EvalRecord(
        system="s",
        scale="x",
        model="m",
        stands_for="m",
        accelerator="cpu",
        device="d",
        num_rows=8,
        exact_match=0.5,
        by_type={"FOBAR": (3, 4), "SV": (1, 4)},
        before=0.125,
        before_by_type={"FOBAR": (1, 4), "SV": (0, 4)},
        majority_baseline=0.0,
        distinct_answers=8,
        split_sha256="",
        provenance=collect("cpu"),
        predictions=(),
    )
    lines = [line.split() for line in by_type_table(record).splitlines()]
    assert lines == [
        ["type", "rows", "before", "after"],
        ["FOBAR", "4", "25.00", "%", "75.00", "%"],
        ["SV", "4", "0.00", "%", "25.00", "%"],
        ["all", "8", "12.50", "%", "50.00", "%"],
    ]
    alone = record.model_copy(update={"before": None, "before_by_type": {}})
    assert by_type_table(alone).splitlines()[-1].split() == [
        "all",
        "8",
        "-",
        "50.00",
        "%",
    ]
