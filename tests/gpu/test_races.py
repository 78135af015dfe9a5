"""Races provoked: slowed copies, every prefetch distance, identical bits.

The paper's upstream saw a NaN at step 6 with a prefetch of two; a copy stream that
overtakes or is overtaken would show here as another loss or as the poison's NaN.
"""

import math

import pytest
import torch
from streaming import (
    engine_for,
    plan_for,
    random_batch,
    reference_loss,
    reference_model,
    small_config,
    weights_of,
)

from lazytrain.config import OptimizerSettings

STEPS = 200


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def slow(cycles):
    """Return a hook that makes the copy's stream spin before the copy."""
    state = {"n": 0}

    def delay(_name):
        state["n"] += 1
        torch.cuda._sleep(cycles * (state["n"] % 7))

    return delay


def losses(distance, steps, cycles=0, homes="CRCGG", body="eager", waiting=()):
    config = small_config("7B-mini", layers=4)
    plan = plan_for(
        config,
        homes,
        seq_len=64,
        body=body,
        waiting=waiting,
        prefetch_distance=distance,
        weight_slots=distance + 1,
    )
    engine = engine_for(
        config,
        plan,
        device="cuda",
        dtype=torch.bfloat16,
        settings=OptimizerSettings(type="adamw"),
        delay=slow(cycles) if cycles else None,
    )
    pending = [
        engine.train_step(random_batch(config.vocab_size, tokens=64, seed=n % 8), 1e-4)
        for n in range(steps)
    ]
    values = [step.result().loss for step in pending]
    engine.close()
    assert all(math.isfinite(value) for value in values)
    return values


def test_two_hundred_steps_at_every_distance(deterministic):
    truth = losses(0, STEPS)
    for distance in range(1, 5):
        assert losses(distance, STEPS) == truth, f"distance {distance}"


@pytest.mark.parametrize("distance", range(5))
def test_slowed_copies_change_no_bit(deterministic, distance):
    assert losses(distance, 20, cycles=300_000) == losses(0, 20)


@pytest.mark.parametrize("homes", ["GGGGG", "CCCCG", "GRRRG"])
def test_compiled_bodies_under_slow_copies(deterministic, homes):
    truth = losses(0, 10, homes=homes, body="compile")
    assert losses(3, 10, 300_000, homes=homes, body="compile") == truth


@pytest.mark.parametrize("distance", [0, 2])
def test_slowed_gradients_that_wait_change_no_bit(deterministic, distance):
    waiting = ("embedding", "layer.0", "layer.1", "layer.2", "layer.3", "head")
    assert losses(distance, 20, 300_000, waiting=waiting) == losses(0, 20)


@pytest.mark.parametrize("cycles", [0, 20_000_000])
@pytest.mark.parametrize("body", ["eager", "compile"])
def test_the_held_out_loss_is_read_when_it_is_there(cycles, body):
    """Its sum is made on the compute stream, behind uploads that are slow."""
    config = small_config("7B-mini", layers=4)
    engine = engine_for(
        config,
        plan_for(config, "CRCGG", body=body),
        device="cuda",
        delay=slow(cycles) if cycles else None,
    )
    weights = weights_of(engine)
    for seed in range(3):
        batch = random_batch(config.vocab_size, seed=seed)
        model = reference_model(config, weights, torch.float32, "cuda")
        with torch.no_grad():
            mean = reference_loss(model, batch).item()
        total, count = engine.evaluate_loss(batch)
        assert total / count == pytest.approx(mean, rel=1e-5)
    engine.close()
