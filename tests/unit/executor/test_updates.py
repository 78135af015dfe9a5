"""Overlapped updates give the numbers of the serial order."""

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
from lazytrain.executor.streams import host_delay

SETTINGS = OptimizerSettings(
    type="adamw", learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5
)


def test_ten_steps_follow_clipped_adamw():
    config = small_config("3B-mini", layers=3)
    engine = engine_for(config, plan_for(config, "GRGG"), settings=SETTINGS)
    model = reference_model(config, weights_of(engine), torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for number in range(10):
        batch = random_batch(config.vocab_size, seed=number)
        step = engine.train_step(batch, 1e-3).result()
        loss = reference_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert step.loss == pytest.approx(loss.item(), rel=1e-5)
        assert step.grad_norm == pytest.approx(float(norm), rel=1e-4)
    state = dict(model.named_parameters())
    for name, weight in engine.named_weights():
        torch.testing.assert_close(weight, state[name].detach(), rtol=2e-3, atol=2e-5)
    engine.close()


def losses(plan_fields, steps=6, **options):
    config = small_config("7B-mini", layers=4)
    plan = plan_for(config, "CRCGG", **plan_fields)
    engine = engine_for(config, plan, settings=SETTINGS, **options)
    pending = [
        engine.train_step(random_batch(config.vocab_size, seed=n), 1e-3)
        for n in range(steps)
    ]
    values = [step.result().loss for step in pending]
    weights = weights_of(engine)
    engine.close()
    return values, weights


def test_order_of_launch_and_slow_copies_change_no_bit():
    truth, weights = losses({"prefetch_distance": 0, "weight_slots": 1})
    for distance in range(1, 5):
        fields = {"prefetch_distance": distance, "weight_slots": distance + 1}
        got, ends = losses(fields, delay=host_delay(0.0005))
        assert got == truth
        assert all(torch.equal(ends[n], weights[n]) for n in weights)


def test_a_non_finite_norm_skips_the_step_and_leaves_every_bit():
    config = small_config("3B-mini", layers=2)
    engine = engine_for(config, plan_for(config, "GGG"), settings=SETTINGS)
    engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    engine.drain()
    poisoned = dict(engine.named_weights())["model.layers.1.mlp.up_proj.weight"]
    kept = poisoned[0, 0].item()
    poisoned[0, 0] = float("nan")
    before = {n: t.clone() for n, t in engine.named_weights()}
    states = engine._optimizer.states
    moments = {
        p: {n: t.clone() for n, t in s.tensors().items()} for p, s in states.items()
    }
    step = engine.train_step(random_batch(config.vocab_size, seed=1), 1e-3).result()
    engine.drain()
    assert step.skipped
    assert step.grad_norm is None
    for name, tensor in engine.named_weights():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0)), name
    for part, state in states.items():
        for name, tensor in state.tensors().items():
            assert torch.equal(tensor, moments[part][name]), (part, name)
    poisoned[0, 0] = kept
    assert not engine.train_step(random_batch(config.vocab_size), 1e-3).result().skipped
    engine.close()


def test_accumulation_equals_one_big_batch():
    truth, _ = losses({"micro_batch": 4}, steps=3)
    for fields in (
        {"micro_batch": 1},
        {"micro_batch": 2},
        {"micro_batch": 1, "order": "batch-major"},
    ):
        got, _ = losses(fields, steps=3)
        assert got == pytest.approx(truth, rel=2e-6)


def test_a_failed_worker_stops_the_step_instead_of_hanging():
    def fail(name):
        if name == "layer.2":
            raise OSError("link lost")

    config = small_config("7B-mini", layers=4)
    engine = engine_for(config, plan_for(config, "GGGGG"), delay=fail)
    with pytest.raises(RuntimeError, match="worker failed") as caught:
        engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("state", ["fp32", "8bit", "hybrid"])
def test_training_continues_from_saved_state_under_another_plan(state):
    """Two steps, saved; two more in a new engine equal four in one, bit for bit."""
    config = small_config("7B-mini", layers=4)
    batches = [random_batch(config.vocab_size, seed=n) for n in range(4)]

    def engine(homes, **fields):
        plan = plan_for(config, homes, state=state, **fields)
        return engine_for(config, plan, settings=SETTINGS)

    whole = engine("GGGGG")
    losses_whole = [whole.train_step(b, 1e-3).result().loss for b in batches]
    first = engine("GGGGG")
    for batch in batches[:2]:
        first.train_step(batch, 1e-3).result()
    saved = {n: t.clone() for n, t in first.optimizer_tensors().items()}
    second = engine("CRGCG", prefetch_distance=0)
    second.load_training_state(weights_of(first), saved, first.applied_steps)
    losses_second = [second.train_step(b, 1e-3).result().loss for b in batches[2:]]
    assert losses_second == losses_whole[2:]
    ends = weights_of(whole)
    assert all(torch.equal(ends[n], t) for n, t in second.named_weights())
    for each in (whole, first, second):
        each.close()


def test_every_breakdown_names_what_compute_can_wait_for():
    config = small_config("3B-mini", layers=2)
    engine = engine_for(config, plan_for(config, "GGG"))
    spent = engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    waits = {"exposed_optimizer", "exposed_h2d", "exposed_boundary"}
    assert waits <= spent.breakdown_s.keys()
    engine.close()
