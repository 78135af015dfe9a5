"""A batch without a single label: no NaN, counted as skipped, and nothing moves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streaming import engine_for, plan_for, random_batch, small_config

from lazytrain.baselines import megatrain, resident
from lazytrain.config import (
    ExecutorSettings,
    OptimizerSettings,
    Purpose,
    ScheduleSettings,
)
from lazytrain.profile.setup import EngineSetup
from lazytrain.train.loop import Loop

CPU = torch.device("cpu")
SETTINGS = OptimizerSettings(threads=1)
SYSTEMS = ("lazytrain", "lazytrain-recompute", "megatrain", "resident")


def build(system):
    """Return an engine of two layers."""
    config = small_config(layers=2)
    if system.startswith("lazytrain"):
        homes = "GCG" if system == "lazytrain" else "GRG"
        plan = plan_for(config, homes, state="hybrid")
        return engine_for(config, plan, settings=SETTINGS)
    setup = EngineSetup(
        model_config=config,
        state_dict=None,
        optimizer=SETTINGS,
        executor=ExecutorSettings(loss_chunk_tokens=16),
        batch=4,
        seq_len=24,
        dtype=torch.float32,
        device=CPU,
        seed=0,
        scratch=Path(),
    )
    return {"megatrain": megatrain, "resident": resident}[system].build(setup)


def masked(batch, rows=None):
    """Return a batch without labels, or without those of its first rows."""
    labels = batch.labels.clone()
    labels[:rows] = -100
    return replace(batch, labels=labels)


def batches(*seeds, without_labels=()):
    found = [random_batch(384, seed=seed) for seed in seeds]
    return [
        masked(b) if n in without_labels else b
        for n, b in zip(seeds, found, strict=True)
    ]


def train(system, given, held_out=()):
    """Run the loop over the batches; return its outcome and the final weights."""
    purpose = Purpose(
        num_steps=len(given),
        warmup_steps=0,
        learning_rate=1e-2,
        schedule=ScheduleSettings(kind="constant"),
    )
    engine = build(system)
    records = []
    outcome = Loop(engine, purpose, records.append, held_out).run(given)
    engine.drain()
    weights = {name: tensor.clone() for name, tensor in engine.named_weights()}
    engine.close()
    return outcome, weights


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_skipped_and_the_training_is_as_if_it_had_not_been(system):
    outcome, weights = train(system, batches(0, 1, 2, without_labels=(1,)))
    assert [step.skipped for step in outcome.steps] == [False, True, False]
    assert outcome.skipped_steps == 1
    assert [step.supervised_tokens for step in outcome.steps][1] == 0
    assert all(math.isfinite(step.loss) for step in outcome.steps)
    truth, expected = train(system, batches(0, 2))
    assert outcome.losses == truth.losses
    for name, tensor in weights.items():
        assert torch.isfinite(tensor).all(), name
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("system", SYSTEMS)
def test_first_and_last_steps_may_be_such_batches(system):
    outcome, weights = train(system, batches(0, 1, 2, 3, without_labels=(0, 3)))
    assert [step.skipped for step in outcome.steps] == [True, False, False, True]
    _, expected = train(system, batches(1, 2))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())


@pytest.mark.parametrize("system", SYSTEMS)
def test_held_out_batches_without_labels_weigh_nothing(system):
    good = random_batch(384, seed=5)
    both, _ = train(system, batches(0), [masked(good), good])
    alone, _ = train(system, batches(0), [good])
    assert both.eval_loss == alone.eval_loss
    assert both.eval_loss is not None
    none, _ = train(system, batches(0), [masked(good)])
    assert none.eval_loss is None


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_micro_batch_without_labels_adds_nothing(system):
    """Two of four rows are masked: a whole micro-batch of our executor's plan."""
    given = masked(random_batch(384, seed=0), rows=2)
    outcome, weights = train(system, [given])
    assert not outcome.steps[0].skipped
    engine = build(system)
    total, count = engine.evaluate_loss(given)
    engine.close()
    assert count == given.num_supervised
    assert outcome.losses[0] == pytest.approx(total / count, rel=1e-5)
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
