"""Packed rows hold every document whole, with its borders; nothing leaks across."""

from collections import Counter
from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from lazytrain.data.batches import IGNORE, batches
from lazytrain.data.packing import cu_seq_lens, grouped_batches, packed_batches
from lazytrain.data.prompts import encode, load_tokenizer
from lazytrain.data.rows import Row
from lazytrain.errors import InvalidInput
from lazytrain.models.scales import model_config

TOKENIZER = load_tokenizer("random", 384)
sizes = st.lists(st.integers(1, 50), min_size=1, max_size=25)


def _rows(sizes):
    return [
        Row(
            row_id=n,
            query=f"{n:02d}",
            response="x" * size,
            original_question=f"{n}",
            type="t",
            train_on_prompt=n % 3 == 0,
        )
        for n, size in enumerate(sizes)
    ]


def _documents(batch):
    """Each document's tokens and labels, read back from a packed batch."""
    found = []
    for ids, labels, documents in zip(
        batch.input_ids, batch.labels, batch.documents, strict=True
    ):
        for number in range(int(documents.max()) + 1):
            mask = documents == number
            found.append((ids[mask].tolist(), labels[mask].tolist()))
    return found


def _id(tokens):
    return int(TOKENIZER.decode(tokens[1:3]))


def _packed(rows, **changes):
    values = {"batch": 2, "seq_len": 64, "seed": 0}
    return packed_batches(rows, TOKENIZER, **(values | changes))


def _grouped(rows, **changes):
    values = {"batch": 2, "seq_len": 64, "seed": 0}
    return grouped_batches(rows, TOKENIZER, **(values | changes))


@settings(max_examples=40)
@given(sizes, st.integers(1, 2))
def test_every_document_is_packed_whole_once_an_epoch(sizes, epochs):
    rows = _rows(sizes)
    seen = Counter()
    for batch in _packed(rows, epochs=epochs, keep_partial=True):
        for tokens, labels in _documents(batch):
            expected = encode(rows[_id(tokens)], TOKENIZER)
            assert tokens == expected.input_ids
            assert labels == [IGNORE, *expected.labels[1:]]
            seen[_id(tokens)] += 1
        assert batch.real_tokens == int((batch.documents >= 0).sum())
        assert batch.padded_tokens == batch.input_ids.shape[0] * 64
    assert seen == {row.row_id: epochs for row in rows}


@settings(max_examples=30)
@given(sizes)
def test_borders_positions_and_documents_agree(sizes):
    for batch in _packed(_rows(sizes), epochs=1, keep_partial=True):
        assert torch.equal(batch.documents >= 0, batch.attention_mask.bool())
        starts = cu_seq_lens(batch)
        assert starts[0] == 0
        assert starts[-1] == batch.padded_tokens
        flat = batch.position_ids.flatten()
        for one, other in pairwise(starts.tolist()):
            assert torch.equal(flat[one:other], torch.arange(other - one))
            assert len(set(batch.documents.flatten()[one:other].tolist())) == 1


@settings(max_examples=25)
@given(st.sampled_from([_packed, _grouped]), sizes, st.integers(0, 8))
def test_both_streams_resume_anywhere(make, sizes, done):
    rows = _rows([*sizes, 5, 9])
    whole = list(islice(make(rows), done + 4))[done:]
    first = make(rows)
    for _ in range(done):
        next(first)
    for one, other in zip(whole, make(rows, start=first.position), strict=False):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.labels, other.labels)


def test_packing_leaves_little_padding():
    rows = _rows([3, 40, 17, 8, 25, 11, 30, 6] * 12)
    plain = list(batches(rows, TOKENIZER, batch=8, seq_len=64, seed=0, epochs=1))
    packed = list(_packed(rows, batch=8, epochs=1, keep_partial=True))
    share = [
        sum(b.real_tokens for b in which) / sum(b.padded_tokens for b in which)
        for which in (plain, packed[:-1])
    ]
    assert share[1] > 0.93
    assert share[1] > share[0] + 0.2


@settings(max_examples=30)
@given(sizes, st.integers(1, 2))
def test_grouping_keeps_every_row(sizes, epochs):
    rows = _rows(sizes)
    seen = Counter(
        _id(tokens.tolist())
        for batch in _grouped(rows, epochs=epochs, keep_partial=True)
        for tokens in batch.input_ids
    )
    assert seen == {row.row_id: epochs for row in rows}


def test_grouped_batches_have_like_lengths_in_mixed_order():
    rows = _rows([n % 50 + 1 for n in range(96)])
    found = list(_grouped(rows, batch=8, epochs=1))
    assert len(found) == 12
    spread = [int(b.lengths.max() - b.lengths.min()) for b in found]
    assert max(spread) <= 8
    widths = [b.input_ids.shape[1] for b in found]
    assert widths != sorted(widths)


@pytest.mark.parametrize("name", ["3B-mini", "7B-mini"])
def test_a_packed_document_has_the_logits_of_the_document_alone(name):
    """On plain transformers, which resets attention where positions restart."""
    config = model_config(name)
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    batch = next(_packed(_rows([9, 12, 30, 4, 7, 21, 3, 15]), batch=2))
    with torch.no_grad():
        packed = model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
        ).logits
        for place in range(2):
            for number in range(int(batch.documents[place].max()) + 1):
                mask = batch.documents[place] == number
                alone = model(input_ids=batch.input_ids[place][mask][None]).logits[0]
                torch.testing.assert_close(
                    packed[place][mask], alone, rtol=1e-4, atol=1e-5
                )
            # The check sees a leak: without positions, later documents differ.
        leaky = model(input_ids=batch.input_ids, use_cache=False).logits
    later = batch.documents > 0
    assert (packed[later] - leaky[later]).abs().max() > 1e-2


def test_impossible_arguments():
    for make in (_packed, _grouped):
        with pytest.raises(InvalidInput, match="no rows"):
            make([])
        with pytest.raises(InvalidInput, match="need at least 1 and 2"):
            make(_rows([1]), batch=0)
        with pytest.raises(InvalidInput, match="answer too long: 1"):
            next(make(_rows([200])))
    plain = next(batches(_rows([3]), TOKENIZER, batch=1, seq_len=64, seed=0))
    with pytest.raises(InvalidInput, match="not packed"):
        cu_seq_lens(plain)
