"""Filled rows: every token real and supervised, in the order of the documents."""

from itertools import islice

import pytest

from lazytrain.config import SyntheticSettings
from lazytrain.data.batches import epoch_order
from lazytrain.data.filled import filled_batches
from lazytrain.data.metamath import load_rows
from lazytrain.data.prompts import encode, load_tokenizer
from lazytrain.errors import InvalidInput

SHAPE = {"batch": 3, "seq_len": 50, "seed": 7}


@pytest.fixture(scope="module")
def rows():
    return load_rows("synthetic", SyntheticSettings(num_questions=6)).rows


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("random", 1024)


def test_tokens_are_the_documents_without_a_gap_and_all_have_labels(rows, tokenizer):
    documents = iter(epoch_order(rows, 7, 0))
    batches = list(filled_batches(rows, tokenizer, **SHAPE, epochs=1))
    assert len(batches) > 3
    for batch in batches:
        expected = []
        while len(expected) < 150:
            expected += encode(next(documents), tokenizer).input_ids
        assert batch.input_ids.flatten().tolist() == expected[:150]
        assert batch.real_tokens == batch.padded_tokens == 150
        assert batch.num_supervised == 3 * 49
        assert batch.documents is None


@pytest.mark.parametrize("ahead", [0, 3, 10])
def test_a_resumed_stream_goes_on_with_the_same_batches(rows, tokenizer, ahead):
    truth = list(islice(filled_batches(rows, tokenizer, **SHAPE), 12))
    stream = filled_batches(rows, tokenizer, **SHAPE, ahead=ahead)
    for number in range(1, 6):
        next(stream)
        again = filled_batches(rows, tokenizer, **SHAPE, start=stream.position)
        for found, expected in zip(islice(again, 6), truth[number:], strict=False):
            assert found.input_ids.equal(expected.input_ids)


def test_a_document_longer_than_a_row_is_cut_not_dropped(rows, tokenizer):
    stream = filled_batches(rows, tokenizer, batch=2, seq_len=8, seed=7, epochs=1)
    next(stream)
    assert stream.counts == {}


@pytest.mark.parametrize("ahead", [0, 2, 1000])
def test_batches_made_ahead_are_the_same_and_epochs_follow_each_other(
    rows, tokenizer, ahead
):
    truth = islice(filled_batches(rows, tokenizer, **SHAPE), 40)
    found = islice(filled_batches(rows, tokenizer, **SHAPE, ahead=ahead), 40)
    for first, second in zip(truth, found, strict=True):
        assert first.input_ids.equal(second.input_ids)


def test_no_rows_are_an_error(tokenizer):
    with pytest.raises(InvalidInput):
        next(filled_batches([], tokenizer, **SHAPE))
