"""Gradients that wait in HBM give the numbers of gradients that were sent at once."""

import pytest
import torch
from streaming import (
    engine_for,
    gradients_of,
    plan_for,
    random_batch,
    small_config,
    weights_of,
)

from lazytrain.config import OptimizerSettings
from lazytrain.executor.streams import host_delay

SETTINGS = OptimizerSettings(
    type="adamw", learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5
)
LAYERS = tuple(f"layer.{n}" for n in range(4))
ALL = ("embedding", *LAYERS, "head")


def trained(waiting, model="7B-mini", steps=5, delay=None, **fields):
    config = small_config(model, layers=4)
    plan = plan_for(config, "CRGCG", waiting=waiting, **fields)
    engine = engine_for(config, plan, settings=SETTINGS, delay=delay)
    pending = [
        engine.train_step(random_batch(config.vocab_size, seed=n), 1e-3)
        for n in range(steps)
    ]
    losses = [step.result().loss for step in pending]
    weights, gradients = weights_of(engine), gradients_of(engine)
    engine.close()
    return losses, weights, gradients, engine


@pytest.mark.parametrize("model", ["7B-mini", "3B-mini"])  # untied and tied
@pytest.mark.parametrize("waiting", [LAYERS, ALL, LAYERS[1:3]])
@pytest.mark.parametrize("order", ["layer-major", "batch-major"])
def test_every_bit_is_that_of_gradients_sent_at_once(model, waiting, order):
    truth = trained((), model, order=order)
    got = trained(waiting, model, order=order)
    assert got[0] == truth[0]
    for kind in (1, 2):
        for name, value in truth[kind].items():
            assert torch.equal(got[kind][name], value), name


@pytest.mark.parametrize("distance", [0, 1, 3])
def test_slow_copies_change_no_bit(distance):
    truth = trained(())
    ring = {"prefetch_distance": distance, "weight_slots": distance + 1}
    got = trained(ALL, delay=host_delay(0.0005), **ring)
    assert got[0] == truth[0]
    assert all(torch.equal(got[1][name], truth[1][name]) for name in truth[1])


def test_the_host_holds_two_gradients_instead_of_all():
    whole, consumed = trained((), steps=1)[3], trained(LAYERS, steps=1)[3]
    layer = whole._sizes.layouts["layer.0"].numel * 4
    page = 4096  # every buffer of the arena starts on one
    saved = whole._arena.total_bytes - consumed._arena.total_bytes
    assert saved == 2 * -(-layer // page) * page


def test_a_skipped_step_sends_nothing_and_the_next_one_is_right():
    config = small_config("7B-mini", layers=4)
    plan = plan_for(config, "CRGCG", waiting=ALL)
    engine = engine_for(config, plan, settings=SETTINGS)
    weight = dict(engine.named_weights())["model.layers.1.mlp.up_proj.weight"]
    kept = weight[0, 0].item()
    weight[0, 0] = float("nan")
    assert engine.train_step(random_batch(config.vocab_size), 1e-3).result().skipped
    engine.drain()
    weight[0, 0] = kept
    losses = [
        engine.train_step(random_batch(config.vocab_size, seed=n), 1e-3).result().loss
        for n in range(5)
    ]
    assert losses == trained(ALL)[0]
    engine.close()
