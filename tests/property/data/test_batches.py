"""Batches lose no row, repeat none, mask prompts, and go on where they stopped."""

from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.data.batches import IGNORE, Fit, batches, collate, fit_row
from lazytrain.data.prompts import Encoded, encode, load_tokenizer
from lazytrain.data.rows import Row
from lazytrain.errors import InvalidInput

TOKENIZER = load_tokenizer("random", 384)


def _rows(sizes, prompt=4):
    return [
        Row(
            row_id=n,
            query=f"{n:02d}".ljust(prompt, "?"),
            response="x" * size,
            original_question=f"{n}",
            type="t",
        )
        for n, size in enumerate(sizes)
    ]


def _ids(batch):
    """Row ids of a batch, read back from the tokens."""
    return [int(TOKENIZER.decode(row[1:3])) for row in batch.input_ids]


def _stream(rows, **changes):
    values = {"batch": 3, "seq_len": 64, "seed": 0}
    return batches(rows, TOKENIZER, **(values | changes))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=3, max_size=20), st.integers(1, 3))
def test_each_epoch_takes_each_row_once(sizes, epochs):
    rows = _rows(sizes)
    stream = _stream(rows, epochs=epochs, keep_partial=True)
    seen = Counter(row_id for batch in stream for row_id in _ids(batch))
    assert seen == {row.row_id: epochs for row in rows}


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 80), min_size=3, max_size=15),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_a_stream_resumed_anywhere_gives_the_same_batches(sizes, done, batch):
    rows = _rows([min(sizes[0], 50), *sizes[1:], 5, 6, 7, 8])
    whole = _stream(rows, batch=batch)
    expected = list(islice(whole, done + 6))[done:]
    first = _stream(rows, batch=batch)
    for _ in range(done):
        next(first)
    resumed = _stream(rows, batch=batch, start=first.position)
    for one, other in zip(expected, resumed, strict=False):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.labels, other.labels)


def test_epochs_are_shuffled_differently_and_by_seed():
    rows = _rows([3] * 30)
    one = [i for b in islice(_stream(rows), 10) for i in _ids(b)]
    stream = _stream(rows)
    first, second = (
        [i for b in islice(stream, 10) for i in _ids(b)],
        [i for b in islice(stream, 10) for i in _ids(b)],
    )
    other = [i for b in islice(_stream(rows, seed=1), 10) for i in _ids(b)]
    assert one == first
    assert sorted(first) == sorted(second)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


def test_padding_labels_lengths_and_masks():
    rows = _rows([3, 10, 20])
    batch = next(_stream(rows))
    assert batch.input_ids.shape[1] == 32  # 4 + 20 + 3 marks, to a multiple of 8
    assert next(_stream(rows, pad_to="max")).input_ids.shape[1] == 64
    for place, row_id in enumerate(_ids(batch)):
        expected = encode(rows[row_id], TOKENIZER)
        length = int(batch.lengths[place])
        assert batch.input_ids[place, :length].tolist() == expected.input_ids
        assert (batch.input_ids[place, length:] == TOKENIZER.pad_token_id).all()
        assert (batch.labels[place, length:] == IGNORE).all()
        assert batch.labels[place, :6].eq(IGNORE).all()  # mark, 4 bytes, end ...
        assert batch.labels[place, length - 1] == TOKENIZER.eos_token_id
        assert batch.attention_mask[place].sum() == length
    assert batch.real_tokens == sum(4 + 3 + 1 + n for n in (3, 10, 20))
    assert batch.num_supervised == sum(n + 1 for n in (3, 10, 20))


def test_rows_that_do_not_fit_are_dropped_and_counted_once():
    rows = _rows([3, 3, 3, 90]) + [
        row.model_copy(update={"row_id": 4}) for row in _rows([3], prompt=90)
    ]
    stream = _stream(rows, seq_len=32)
    for _ in range(6):
        assert 3 not in _ids(next(stream))
    assert stream.counts == {"answer too long": 1, "prompt too long": 1}


@settings(max_examples=60)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(2, 64))
def test_truncation_keeps_part_of_the_answer(prompt, answer, seq_len):
    ids = list(range(prompt + answer))
    labels = [IGNORE] * prompt + ids[prompt:]
    row, remark = fit_row(Encoded(0, ids, labels), Fit(seq_len, "max", True))
    assert row is not None
    assert len(row.input_ids) == min(seq_len, prompt + answer)
    assert (remark == "truncated") == (prompt + answer > seq_len)
    assert row.input_ids == sorted(row.input_ids)
    kept = [label for label in row.labels if label != IGNORE]
    assert kept == ids[prompt : prompt + len(kept)]
    assert len(kept) >= min(answer, seq_len // 2)


def test_a_row_without_any_label_is_dropped():
    row = Encoded(0, [1, 2, 3], [IGNORE] * 3)
    assert fit_row(row, Fit(8)) == (None, "nothing supervised")
    only_first = Encoded(0, [1, 2], [1, IGNORE])  # no position predicts it
    assert fit_row(only_first, Fit(8)) == (None, "nothing supervised")


def test_an_all_masked_batch_counts_no_supervised_position():
    batch = collate([Encoded(0, [1, 2], [IGNORE, IGNORE])], 0, Fit(8))
    assert batch.num_supervised == 0


def test_rows_that_fill_no_batch_are_an_error():
    with pytest.raises(InvalidInput, match=r"only 2 usable row\(s\)"):
        _stream(_rows([3, 3]))
    with pytest.raises(InvalidInput, match="answer too long: 2"):
        next(_stream(_rows([3, 3, 90, 90]), seq_len=32))
    with pytest.raises(InvalidInput, match="need at least 1 and 2"):
        _stream(_rows([3]), batch=0)
    assert len(list(_stream(_rows([3, 3]), epochs=1, keep_partial=True))) == 1


def test_a_very_long_row_is_dropped_or_cut_and_hurts_nobody():
    long = _rows([3])[0].model_copy(
        update={"row_id": 9, "query": "99" + "☃" * 40_000, "response": "é" * 40_000}
    )
    rows = [*_rows([3, 4, 5]), long]
    dropped = _stream(rows, epochs=1)
    assert sorted(i for batch in dropped for i in _ids(batch)) == [0, 1, 2]
    assert dropped.counts == {"prompt too long": 1}
    cut = _stream(rows, batch=4, epochs=1, allow_truncation=True)
    batch = next(cut)
    assert batch.input_ids.shape == (4, 64)
    assert cut.counts == {"truncated": 1}
    assert (batch.labels != IGNORE).sum(dim=1).min() > 0
