"""Splits depend on content and seed alone, and never separate one question's rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.config import SyntheticSettings
from lazytrain.data.metamath import load_rows
from lazytrain.data.rows import Message, Row
from lazytrain.data.split import (
    SplitSettings,
    count_shared,
    measure_leak,
    question_key,
    rows_sha256,
    side_rows,
    split_rows,
)
from lazytrain.errors import InvalidInput

MODES = ("grouped", "paper")


def _rows(pairs):
    return [
        Row(row_id=n, query=q, response=f"{n % 5}", original_question=o, type="t")
        for n, (o, q) in enumerate(pairs)
    ]


def _contents(rows, side):
    return sorted((r.original_question, r.query, r.response) for r in rows)


texts = st.text(alphabet="abc ☃", min_size=1, max_size=3)
pairs = st.lists(st.tuples(texts, texts), min_size=2, max_size=30)


@settings(max_examples=60)
@given(pairs, st.integers(0, 5), st.floats(0.1, 0.9))
def test_grouped_sides_share_no_question_and_no_query(pairs, seed, fraction):
    rows = _rows(pairs)
    how = SplitSettings("grouped", seed, fraction)
    try:
        manifest = split_rows(rows, how, source="t")
    except InvalidInput:
        return  # everything hangs together: one group
    train, test = (side_rows(rows, side) for side in (manifest.train, manifest.test))
    assert len(train) + len(test) == len(rows)
    assert train
    assert test
    for one in (lambda r: r.original_question, lambda r: r.query):
        seen = {question_key(one(row)) for row in train}
        assert seen.isdisjoint(question_key(one(row)) for row in test)
    assert manifest.shared_questions == 0


@settings(max_examples=40)
@given(pairs, st.randoms(use_true_random=False), st.sampled_from(MODES))
def test_the_order_of_rows_does_not_matter(pairs, random, mode):
    rows = _rows(pairs)
    shuffled = list(rows)
    random.shuffle(shuffled)
    renumbered = [r.model_copy(update={"row_id": n}) for n, r in enumerate(shuffled)]
    how = SplitSettings(mode, 1, 0.7)
    try:
        one = split_rows(rows, how, source="t")
    except InvalidInput:
        return
    other = split_rows(renumbered, how, source="t")
    assert (one.train.sha256, one.test.sha256) == (
        other.train.sha256,
        other.test.sha256,
    )
    assert one.shared_questions == other.shared_questions


def test_the_paper_split_has_exactly_its_fraction_and_counts_its_leak():
    rows = load_rows("synthetic", SyntheticSettings(num_questions=500)).rows
    manifest = split_rows(rows, SplitSettings("paper", 0, 0.7), source="s")
    assert len(manifest.train.row_ids) == 1400
    questions = {rows[i].original_question for i in manifest.train.row_ids}
    leaked = [
        i for i in manifest.test.row_ids if rows[i].original_question in questions
    ]
    assert manifest.shared_questions == len(leaked)
    # Four rows a question: a test row is alone with probability 0.3 ** 3.
    assert 0.95 < manifest.shared_questions / len(manifest.test.row_ids) < 1


def test_the_leak_of_both_splits_is_measured():
    rows = load_rows("synthetic", SyntheticSettings(num_questions=300)).rows
    leak = measure_leak(rows, "synthetic")
    assert (leak.num_rows, leak.num_questions) == (1200, 300)
    assert leak.grouped == (0, 360)
    assert leak.paper[1] == 360
    assert leak.paper[0] > 340


def test_the_grouped_split_is_close_to_its_fraction_and_depends_on_the_seed():
    rows = load_rows("synthetic", SyntheticSettings(num_questions=500)).rows
    one, other = (
        split_rows(rows, SplitSettings("grouped", seed, 0.7), source="s")
        for seed in (0, 1)
    )
    assert len(one.train.row_ids) == len(other.train.row_ids) == 1400
    assert one.train.sha256 != other.train.sha256


def test_the_split_is_the_same_on_every_platform():
    """Pinned: a change here changes which rows every recorded run was tested on."""
    rows = _rows([(f"question {n // 2}", f"query {n}") for n in range(12)])
    grouped = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="s")
    paper = split_rows(rows, SplitSettings("paper", 0, 0.7), source="s")
    assert grouped.test.row_ids == (4, 5, 10, 11)
    assert grouped.train.sha256[:16] == "edf2096ef23097e9"
    assert (paper.test.row_ids, paper.shared_questions) == ((5, 6, 7, 8), 2)
    assert paper.train.sha256[:16] == "851f81caf2bced6c"


@pytest.mark.parametrize("mode", MODES)
def test_too_few_rows_are_refused(mode):
    for pairs in ([], [("a", "b")]):
        with pytest.raises(InvalidInput, match="cannot be divided"):
            split_rows(_rows(pairs), SplitSettings(mode), source="t")
    same = _rows([("a", "b"), ("a", "c")])
    if mode == "grouped":
        with pytest.raises(InvalidInput, match="different original questions"):
            split_rows(same, SplitSettings(mode), source="t")


def test_rows_of_another_file_are_refused():
    rows = _rows([("a", "1"), ("b", "2"), ("c", "3")])
    manifest = split_rows(rows, SplitSettings(), source="t")
    changed = [r.model_copy(update={"response": "other"}) for r in rows]
    with pytest.raises(InvalidInput, match="not the one"):
        side_rows(changed, manifest.train)
    with pytest.raises(InvalidInput, match="only 1 rows"):
        side_rows(rows[:1], manifest.train)


def test_hashes_ignore_order_and_see_every_change():
    rows = _rows([("a", "1"), ("b", "2")])
    assert rows_sha256(rows) == rows_sha256(rows[::-1])
    assert rows_sha256(rows) != rows_sha256([*rows, rows[0]])
    assert count_shared(rows, [0], [1]) == 0


def test_conversations_with_the_same_last_turn_are_not_one_question():
    history = [
        (
            Message(role="user", content=f"Say {n}."),
            Message(role="assistant", content="."),
        )
        for n in (0, 1, 2, 3, 4, 5, 0, 1)
    ]
    rows = [
        Row(
            row_id=place,
            query="Again, please.",
            response=str(place),
            original_question=f"{turns[0].content}\nAgain, please.",
            type="question",
            history=turns,
        )
        for place, turns in enumerate(history)
    ]
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.5), source="talks")
    assert 2 <= len(manifest.train.row_ids) <= 6
    assert manifest.shared_questions == 0
    for one, other in ((0, 6), (1, 7)):
        assert (one in manifest.train.row_ids) == (other in manifest.train.row_ids)
