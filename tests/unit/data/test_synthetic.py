"""The generator's answers are right, its rows distinct and varied."""

import re
from collections import Counter

import pytest

from lazytrain.data.answers import extract_answer
from lazytrain.data.prompts import encode, load_tokenizer
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import KINDS, generate


@pytest.fixture(scope="module")
def rows():
    return generate(1000, seed=0)


def test_every_answer_solves_its_question(rows):
    """Judged from the text alone: the unknown x closes the sum, else it is the sum."""
    for row in rows:
        numbers = [int(n) for n in re.findall(r"\d+", row.query)]
        answer = int(extract_answer(row.response))
        if "x" in re.findall(r"\w+", row.query):
            known, total = numbers
            assert answer + known == total
        else:
            assert answer == sum(numbers)
        assert row.response.endswith(f"The answer is: {answer}")


def test_each_question_has_one_row_of_each_kind(rows):
    assert len(rows) == 4000
    assert [row.row_id for row in rows] == list(range(4000))
    for start in range(0, len(rows), len(KINDS)):
        four = rows[start : start + len(KINDS)]
        assert tuple(row.type for row in four) == KINDS
        assert len({row.original_question for row in four}) == 1
        assert four[0].query == four[0].original_question
    assert len({row.query for row in rows}) == len(rows)


def test_answers_are_many_and_none_is_frequent(rows):
    split = split_rows(rows, SplitSettings(), source="synthetic")
    test = Counter(extract_answer(rows[i].response) for i in split.test.row_ids)
    train = Counter(extract_answer(rows[i].response) for i in split.train.row_ids)
    assert len(test) >= 200
    most = train.most_common(1)[0][0]
    assert test[most] / test.total() < 0.05
    questions = {rows[i].query for i in split.train.row_ids}
    assert not questions & {rows[i].query for i in split.test.row_ids}


def test_rows_are_short(rows):
    tokenizer = load_tokenizer("random", 384)
    assert max(len(encode(row, tokenizer).input_ids) for row in rows[:400]) <= 80


def test_the_seed_decides():
    assert generate(20, 0) == generate(20, 0)
    assert generate(20, 0) != generate(20, 1)
    assert generate(40, 0)[:80] == generate(20, 0)
