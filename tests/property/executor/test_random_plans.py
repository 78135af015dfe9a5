"""Hypothesis over plans: any homes, cut, rings and levels give autograd's numbers."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import (
    engine_for,
    gradients_of,
    plan_for,
    random_batch,
    reference_gradients,
    relative_error,
    small_config,
    weights_of,
)

LAYERS = 4
MODELS = ("3B-mini", "7B-mini")


@functools.cache
def truth(model, tokens):
    config = small_config(model, layers=LAYERS)
    engine = engine_for(config, plan_for(config, "GGGGG"))
    weights = weights_of(engine)
    engine.close()
    batch = random_batch(config.vocab_size, tokens=tokens)
    return batch, *reference_gradients(config, weights, batch)


plans = st.fixed_dictionaries(
    {
        "homes": st.tuples(
            st.sampled_from("GC"), st.text("GCR", min_size=3, max_size=3)
        ).map(lambda pair: f"{pair[0]}{pair[1]}G"),
        "level": st.tuples(*[st.sampled_from(("inputs", "all"))] * LAYERS),
        "order": st.sampled_from(("layer-major", "batch-major")),
        "micro_batch": st.sampled_from((1, 2, 4)),
        "mode": st.sampled_from(("replay", "fused")),
        "prefetch_distance": st.integers(0, 3),
        "spare_slots": st.integers(1, 3),
        "grad_slots": st.integers(1, 3),
        "read_ahead_blocks": st.integers(1, 3),
        "loss_chunk_tokens": st.sampled_from((1, 7, 64)),
        "resident": st.sets(st.sampled_from(("layer.0", "layer.2"))),
    }
)


@settings(max_examples=25)
@given(model=st.sampled_from(MODELS), tokens=st.sampled_from((9, 24)), plan=plans)
def test_any_plan_gives_the_numbers_of_autograd(model, tokens, plan):
    batch, loss, gradients = truth(model, tokens)
    config = small_config(model, layers=LAYERS)
    fields = dict(plan)
    homes = fields.pop("homes")
    fields["weight_slots"] = fields["prefetch_distance"] + fields.pop("spare_slots")
    engine = engine_for(config, plan_for(config, homes, **fields))
    try:
        step = engine.train_step(batch, 1e-3).result()
        assert step.loss == pytest.approx(loss, rel=1e-6)
        for name, value in gradients_of(engine).items():
            assert relative_error(value, gradients[name]) < 1e-5, name
    finally:
        engine.close()
