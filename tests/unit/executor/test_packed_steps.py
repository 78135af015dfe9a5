"""Packed rows train as their documents alone would: nothing leaks over a border."""

import dataclasses

import pytest
import torch
from streaming import engine_for, gradients_of, plan_for, small_config
from transformers import AutoConfig

from lazytrain.data.batches import IGNORE, Batch
from lazytrain.errors import InvalidInput
from lazytrain.executor.packing import Borders, ConditionMaker
from lazytrain.models.decoder import Decoder
from lazytrain.models.families import attention_mask

TOKENS = 80  # more than one chunk of the delta rule
VOCAB = 384
# Documents' lengths by row: borders inside and at the end of a chunk, short ones too.
ROWS = ((30, 3, 40), (64, 16), (1, 79), (17, 18, 19))
# Their gradients are sums of cancelling terms; fp32 keeps few digits of them.
DECAY = ("A_log", "dt_bias", "in_proj_a.weight")


def small(family):
    """A two-layer configuration; the hybrid has a layer of each type."""
    if family == "qwen3_5_text":
        config = small_config("27B-mini", layers=4)
        config.num_hidden_layers = 2
        config.layer_types = ["linear_attention", "full_attention"]
        return config
    if family == "qwen2":
        return small_config("3B-mini", layers=2)
    values = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": VOCAB,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if family == "mistral":
        values["sliding_window"] = 12
    return AutoConfig.for_model(family, **values)


FAMILIES = ("qwen2", "llama", "qwen3", "mistral", "qwen3_5_text")


def documents(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randint(0, VOCAB, (n,), generator=generator) for n in row]
        for row in ROWS
    ]


def packed(rows, tokens=TOKENS):
    """One batch of packed rows; a document's first token has no label."""
    shape = (len(rows), tokens)
    ids = torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORE)
    positions, owners = torch.zeros_like(ids), torch.full(shape, -1)
    for place, row in enumerate(rows):
        start = 0
        for number, document in enumerate(row):
            end = start + len(document)
            ids[place, start:end] = document
            labels[place, start + 1 : end] = document[1:]
            positions[place, start:end] = torch.arange(len(document))
            owners[place, start:end] = number
            start = end
        positions[place, start:] = torch.arange(tokens - start)
    lengths = torch.tensor([sum(map(len, row)) for row in rows])
    return Batch(ids, labels, lengths, positions, owners)


def alone(document, tokens=TOKENS):
    """A batch of one document in one row, without borders."""
    batch = packed([[document]], tokens)
    return dataclasses.replace(batch, position_ids=None, documents=None)


def engine_of(config, rows, **fields):
    homes = "G" * (config.num_hidden_layers + 1)
    micro_batch = min(2, rows)
    plan = plan_for(
        config, homes, batch=rows, seq_len=TOKENS, micro_batch=micro_batch, **fields
    )
    return engine_for(config, plan)


def assert_same(found, truth):
    """Each gradient to 1e-5 of its norm; those of decays, of the whole gradient's."""
    whole = torch.stack([value.norm() for value in truth.values()]).norm()
    for name, value in truth.items():
        size = whole if name.endswith(DECAY) else value.norm()
        assert (found[name] - value).norm() < 1e-5 * size, name


def loss_of(engine, batch):
    return engine.evaluate_loss(batch)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_batch_is_its_documents_alone(family):
    """Loss and gradients are the sums over documents of what each has alone."""
    config, rows = small(family), documents()
    together, apart = engine_of(config, 4), engine_of(config, 1)
    batch = packed(rows)
    loss, count = together.evaluate_loss(batch)
    together.train_step(batch, 0.0).result()
    total, sums = 0.0, {}
    for document in (d for row in rows for d in row if len(d) > 1):
        single = alone(document)
        total += loss_of(apart, single)
        apart.train_step(single, 0.0).result()
        share = single.num_supervised / count
        for name, gradient in gradients_of(apart).items():
            sums[name] = sums.get(name, 0) + share * gradient
    assert loss == pytest.approx(total, rel=1e-6)
    assert_same(gradients_of(together), sums)
    together.close(), apart.close()


def only(batch, row, number):
    """The same batch, with labels in one document alone."""
    keep = torch.zeros_like(batch.labels, dtype=torch.bool)
    keep[row] = batch.documents[row] == number
    return dataclasses.replace(batch, labels=batch.labels.where(keep, IGNORE))


@pytest.mark.parametrize("family", FAMILIES)
def test_changing_one_document_changes_no_other(family):
    config, rows = small(family), documents()
    engine = engine_of(config, 4)
    other = documents(seed=1)
    changed = [[other[0][0], *rows[0][1:]], *rows[1:]]
    for number in (1, 2):
        before = loss_of(engine, only(packed(rows), 0, number))
        after = loss_of(engine, only(packed(changed), 0, number))
        assert before == after
    before = loss_of(engine, only(packed(rows), 0, 0))
    assert before != loss_of(engine, only(packed(changed), 0, 0))
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dropped_mask_is_a_leak_that_these_tests_see(family, monkeypatch):
    """Positions still restart, but masks are gone: the loss of a neighbour moves."""
    config, rows = small(family), documents()
    engine = engine_of(config, 4)
    make = ConditionMaker._masks
    monkeypatch.setattr(
        ConditionMaker,
        "_masks",
        lambda *given: dict.fromkeys(make(*given)),
    )
    changed = [[documents(seed=1)[0][0], *rows[0][1:]], *rows[1:]]
    before = loss_of(engine, only(packed(rows), 0, 1))
    after = loss_of(engine, only(packed(changed), 0, 1))
    assert before != pytest.approx(after, rel=1e-5)
    engine.close()


def test_one_document_per_row_packed_equals_unpacked():
    config = small("qwen3_5_text")
    rows = [[row[-1]] for row in documents()]
    engine = engine_of(config, 4)
    batch = packed(rows)
    plain = dataclasses.replace(batch, position_ids=None, documents=None)
    assert loss_of(engine, batch) == pytest.approx(loss_of(engine, plain), rel=1e-6)
    engine.close()


@pytest.mark.parametrize("order", ["layer-major", "batch-major"])
@pytest.mark.parametrize("homes", ["CRG", "GGC"])
def test_packing_under_other_plans(order, homes):
    config, rows = small("qwen3_5_text"), documents()
    batch = packed(rows)
    plan = plan_for(
        config, homes, batch=4, seq_len=TOKENS, micro_batch=2, order=order, level="all"
    )
    engine, plainest = engine_for(config, plan), engine_of(config, 4)
    for each in (engine, plainest):
        each.train_step(batch, 0.0).result()
    assert_same(gradients_of(engine), gradients_of(plainest))
    engine.close(), plainest.close()


def test_plain_batches_get_no_conditions():
    cpu = torch.device("cpu")
    decoder = Decoder(small("qwen3_5_text"))
    maker = ConditionMaker(decoder, cpu)
    rotary = decoder.rotary(TOKENS, cpu, torch.float32)
    assert maker.of(rotary, None, 4, 2) is None
    windowed = ConditionMaker(Decoder(small("mistral")), cpu)
    conditions = windowed.of(rotary, None, 4, 2)
    assert len(conditions) == 2
    assert conditions[0].masks["full_attention"].shape == (1, 1, TOKENS, TOKENS)
    assert windowed.of(decoder.rotary(12, cpu, torch.float32), None, 4, 2) is None


def test_the_mask_says_who_sees_whom():
    owners = torch.tensor([[0, 0, 1, 1, 1, -1]])
    mask = attention_mask(owners, 6, 2, torch.device("cpu"))[0, 0]
    seen = [[b for b in range(6) if mask[a, b]] for a in range(6)]
    assert seen == [[0], [0, 1], [2], [2, 3], [3, 4], [5]]


def test_half_packed_batches_are_refused():
    batch = dataclasses.replace(packed(documents()), position_ids=None)
    with pytest.raises(InvalidInput, match="position_ids"):
        Borders.of(batch)
