"""Loss and gradients of a streamed step equal plain autograd, whatever the plan."""

import pytest
import torch
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

from lazytrain.executor.streams import Ticket

TOLERANCE = 1e-5

CASES = {
    "keep everything": ("3B-mini", "GGGGG", {}),
    "host homes": ("7B-mini", "CCCCG", {}),
    "recompute everything": ("3B-mini", "GRRRG", {}),
    "mixed": ("14B-mini", "CRGCG", {}),
    "all activations kept": ("7B-mini", "GGCGG", {"level": "all"}),
    "mixed levels": (
        "7B-mini",
        "GRGGG",
        {"level": ("inputs", "all", "inputs", "all")},
    ),
    "fused block": ("7B-mini", "CRRGG", {"mode": "fused"}),
    "batch-major": ("3B-mini", "GCRGG", {"order": "batch-major", "micro_batch": 1}),
    "one micro-batch": ("3B-mini", "GRCGG", {"micro_batch": 4}),
    "no prefetch": (
        "7B-mini",
        "GRRGG",
        {"prefetch_distance": 0, "weight_slots": 1},
    ),
    "far prefetch": (
        "7B-mini",
        "GRRGG",
        {"prefetch_distance": 4, "weight_slots": 5},
    ),
    "resident layers": ("7B-mini", "GRCGG", {"resident": ("layer.1", "layer.3")}),
    "small pieces": ("7B-mini", "CGRGG", {"chunk_bytes": 2**20, "grad_slots": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_streamed_gradients_match_autograd(case):
    model, homes, fields = CASES[case]
    config = small_config(model, layers=4)
    engine = engine_for(config, plan_for(config, homes, **fields))
    weights = weights_of(engine)
    batch = random_batch(config.vocab_size)
    step = engine.train_step(batch, 1e-3).result()
    loss, gradients = reference_gradients(config, weights, batch)
    assert step.loss == pytest.approx(loss, rel=1e-6)
    streamed = gradients_of(engine)
    assert streamed.keys() == gradients.keys()
    for name, truth in gradients.items():
        assert relative_error(streamed[name], truth) < TOLERANCE, name
    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert step.grad_norm == pytest.approx(float(norm), rel=1e-5)
    engine.close()


# What sets a linear-attention layer's decay: its gradient is a sum over all positions
# of terms that cancel; plain fp32 autograd itself is 2e-5 from float64 there.
DECAY = ("A_log", "dt_bias", "in_proj_a.weight")


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_hybrid_layers_match_autograd(micro_batch):
    config = small_config("27B-mini", layers=4)
    engine = engine_for(config, plan_for(config, "CRRGG", micro_batch=micro_batch))
    weights = weights_of(engine)
    batch = random_batch(config.vocab_size)
    engine.train_step(batch, 1e-3).result()
    _, plain = reference_gradients(config, weights, batch)
    _, truth = reference_gradients(config, weights, batch, torch.float64)
    for name, value in gradients_of(engine).items():
        if name.endswith(DECAY):
            assert relative_error(value, truth[name]) < 5e-4, name
        else:
            assert relative_error(value, plain[name]) < TOLERANCE, name
    engine.close()


def test_each_omitted_boundary_is_recomputed_once(monkeypatch):
    """Forward calls: one per layer, plus one per boundary without a home."""
    from lazytrain.executor.layers import LayerRunner

    config = small_config("3B-mini", layers=4)
    engine = engine_for(config, plan_for(config, "GRRRG", level="all", micro_batch=4))
    calls = {"replay": 0, "forward_with_graph": 0}
    for name in calls:
        original = getattr(LayerRunner, name)

        def counted(self, *args, _name=name, _original=original):
            calls[_name] += 1
            return _original(self, *args)

        monkeypatch.setattr(LayerRunner, name, counted)
    engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    assert calls == {"replay": 3, "forward_with_graph": 4}
    engine.close()


def test_unequal_label_counts_are_normalised_over_the_batch():
    """A micro-batch with few labels weighs as much as its tokens do."""
    config = small_config("3B-mini", layers=2)
    batch = random_batch(config.vocab_size)
    batch.labels[0, :-2] = -100
    batch.labels[1] = -100
    engine = engine_for(config, plan_for(config, "GGG", micro_batch=1))
    weights = weights_of(engine)
    step = engine.train_step(batch, 1e-3).result()
    loss, gradients = reference_gradients(config, weights, batch)
    assert step.loss == pytest.approx(loss, rel=1e-6)
    for name, value in gradients_of(engine).items():
        assert relative_error(value, gradients[name]) < TOLERANCE, name
    engine.close()


def test_a_batch_without_labels_is_skipped_and_changes_nothing():
    config = small_config("3B-mini", layers=2)
    batch = random_batch(config.vocab_size)
    batch.labels.fill_(-100)
    engine = engine_for(config, plan_for(config, "GGG"))
    before = weights_of(engine)
    step = engine.train_step(batch, 1e-3).result()
    assert step.skipped
    assert step.loss == 0.0
    after = weights_of(engine)
    assert all(torch.equal(before[n], after[n]) for n in before)
    engine.close()


def test_evaluation_matches_the_training_loss_and_updates_nothing():
    config = small_config("7B-mini", layers=3)
    batch = random_batch(config.vocab_size)
    engine = engine_for(config, plan_for(config, "GRGG"))
    before = weights_of(engine)
    total, count = engine.evaluate_loss(batch)
    assert all(torch.equal(before[n], t) for n, t in engine.named_weights())
    step = engine.train_step(batch, 1e-3).result()
    assert total / count == pytest.approx(step.loss, rel=1e-6)
    engine.close()


def test_the_held_out_loss_waits_for_its_own_end(monkeypatch):
    """Outside its stream's block a read waits for another stream than the loss's."""
    waited = []
    wait_done = Ticket.wait_done

    def noted(ticket):
        waited.append(ticket.name)
        wait_done(ticket)

    config = small_config("7B-mini", layers=2)
    engine = engine_for(config, plan_for(config, "GGG"))
    monkeypatch.setattr(Ticket, "wait_done", noted)
    engine.evaluate_loss(random_batch(config.vocab_size))
    assert waited[-1] == "evaluation end"
    engine.close()


def test_every_window_of_a_step_is_measured():
    config = small_config("3B-mini", layers=3)
    engine = engine_for(config, plan_for(config, "GRGG"))
    engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    windows = engine.measured_window_s()
    expected = {f"forward {i}" for i in range(3)} | {f"backward {i}" for i in range(3)}
    expected |= {"replay 0", "embedding", "embedding backward", "loss"}
    assert windows.keys() == expected
    assert min(windows.values()) >= 0
    engine.close()


def test_a_run_without_instruments_measures_nothing():
    config = small_config("3B-mini", layers=2)
    engine = engine_for(config, plan_for(config, "GGG"), instrument=False)
    step = engine.train_step(random_batch(config.vocab_size), 1e-3).result()
    assert step.breakdown_s == {}
    assert engine.measured_window_s() == {}
    engine.close()


def test_a_body_that_keeps_more_than_planned_is_refused():
    from lazytrain.errors import PlanMismatch
    from lazytrain.schedule.plan import Template

    config = small_config("7B-mini", layers=2)
    wide = {"batch": 64, "seq_len": 64, "micro_batch": 64, "level": "all"}
    plan = plan_for(config, "GGG", **wide)
    kind = config.layer_types[0]
    low = Template(layer_type=kind, save_level="all", body="eager", kept_bytes=1000)
    plan = plan.model_copy(update={"templates": (low,)})
    engine = engine_for(config, plan)
    batch = random_batch(config.vocab_size, rows=64, tokens=64)
    with pytest.raises(PlanMismatch, match="profile the layers again"):
        engine.train_step(batch, 1e-3)
