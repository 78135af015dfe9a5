"""The baseline's step has the numbers of plain autograd and plain AdamW."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from lazytrain.baselines.initial import build_model
from lazytrain.baselines.megatrain import (
    MegaTrainEngine,
    MegaTrainOptions,
    build,
    build_hybrid,
    build_planned,
)
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.errors import PlanMismatch
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup
from lazytrain.schedule.plan import Home

CPU = torch.device("cpu")
SETTINGS = OptimizerSettings(max_grad_norm=1e9, weight_decay=0.1)


def tiny_config(name: str, layers: int):
    config = model_config(name)
    config.num_hidden_layers = layers
    config.vocab_size = 300
    config.layer_types = config.layer_types[:layers]
    return config


def ragged_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(300, (3, 12), generator=generator)
    lengths = torch.tensor([12, 7, 9])
    labels = ids.clone()
    labels[:, :3] = IGNORE
    labels[torch.arange(12)[None] >= lengths[:, None]] = IGNORE
    return Batch(ids, labels, lengths)


def autograd(config, batch: Batch, seed: int):
    """Loss and gradients of the whole Hugging Face model."""
    model = build_model(config, seed, torch.float32, CPU)
    logits = model(batch.input_ids, attention_mask=batch.attention_mask).logits
    loss = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORE
    )
    loss.backward()
    return model, loss.item(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("single", [False, True], ids=["replay", "single"])
@pytest.mark.parametrize(
    ("name", "layers"), [("3B-mini", 6), ("7B-mini", 5), ("27B-mini", 4)]
)
def test_loss_and_gradients_match_autograd(name, layers, single):
    config = tiny_config(name, layers)
    batch = ragged_batch()
    _, loss, gradients = autograd(config, batch, seed=3)
    options = MegaTrainOptions(
        interval=4, single_recompute=single, loss_chunk_tokens=5, block_tokens=12
    )
    engine = MegaTrainEngine(
        config, SETTINGS, dtype=torch.float32, device=CPU, seed=3, options=options
    )
    step = engine.train_step(batch, 0.0).result()
    assert step.loss == pytest.approx(loss, rel=1e-5)
    found = dict(engine.named_gradients())
    assert found.keys() == gradients.keys()
    for key, expected in gradients.items():
        error = (found[key] - expected).norm() / expected.norm().clamp_min(1e-12)
        assert error < 1e-5, key


@pytest.mark.parametrize("single", [False, True], ids=["replay", "single"])
def test_steps_follow_clipped_adamw(single):
    config = tiny_config("3B-mini", 3)
    settings = OptimizerSettings(max_grad_norm=0.5, weight_decay=0.1)
    engine = MegaTrainEngine(
        config,
        settings,
        dtype=torch.float32,
        device=CPU,
        seed=1,
        options=MegaTrainOptions(interval=2, single_recompute=single),
    )
    model = build_model(config, 1, torch.float32, CPU)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for number in range(3):
        batch = ragged_batch(number)
        logits = model(batch.input_ids).logits
        loss = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten()
        )
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        step = engine.train_step(batch, 1e-2).result()
        assert step.loss == pytest.approx(loss.item(), rel=1e-4)
        assert step.grad_norm == pytest.approx(norm.item(), rel=1e-4)
        assert {"forward_backward", "clip", "optimizer"} <= step.breakdown_s.keys()
    weights = dict(engine.named_weights())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(weights[name], parameter, atol=2e-4, rtol=1e-3)


def test_a_batch_without_labels_or_a_bad_weight_changes_nothing():
    config = tiny_config("3B-mini", 2)
    engine = MegaTrainEngine(config, SETTINGS, dtype=torch.float32, device=CPU, seed=0)
    before = {name: w.clone() for name, w in engine.named_weights()}
    batch = ragged_batch()
    unlabelled = Batch(
        batch.input_ids, torch.full_like(batch.labels, IGNORE), batch.lengths
    )
    assert engine.train_step(unlabelled, 1.0).result().skipped
    for name, weight in engine.named_weights():
        assert torch.equal(weight, before[name])
    weight = dict(engine.named_weights())["model.norm.weight"]
    weight[0] = float("nan")
    for part in engine._parts:
        part.publish()
    assert engine.train_step(batch, 1.0).result().skipped
    after = dict(engine.named_weights())["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(after, before["model.layers.0.mlp.up_proj.weight"])


def test_evaluation_is_the_mean_times_the_count():
    config = tiny_config("7B-mini", 3)
    batch = ragged_batch()
    engine = MegaTrainEngine(config, SETTINGS, dtype=torch.float32, device=CPU, seed=2)
    total, count = engine.evaluate_loss(batch)
    assert count == batch.num_supervised
    assert total / count == pytest.approx(
        engine.train_step(batch, 0.0).result().loss, rel=1e-5
    )


def plan_of(config, kept, away=()):
    """A stand-in for the homes of a solved plan."""
    homes = [Home.RECOMPUTE] * (config.num_hidden_layers + 1)
    for i in (*kept, config.num_hidden_layers):
        homes[i] = Home.GPU
    for i in away:
        homes[i] = Home.CPU
    return SimpleNamespace(homes=tuple(homes))


def setup_of(config, plan=None):
    return EngineSetup(
        model_config=config,
        state_dict=None,
        optimizer=OptimizerSettings(max_grad_norm=0.5, weight_decay=0.1),
        executor=ExecutorSettings(),
        batch=3,
        seq_len=12,
        dtype=torch.float32,
        device=CPU,
        seed=1,
        scratch=Path(),
        plan=plan,
    )


@pytest.mark.parametrize("kept", [(0,), (0, 1, 2, 3, 4, 5), (0, 3, 4)])
def test_planned_checkpoints_change_no_number_and_replay_less(kept):
    config = tiny_config("3B-mini", 6)
    batch = ragged_batch()
    _, loss, gradients = autograd(config, batch, seed=1)
    engine = build_planned(setup_of(config, plan_of(config, kept)))
    runs = 0
    plain = engine._run

    def counted(slot, hidden):
        nonlocal runs
        runs += 1
        return plain(slot, hidden)

    engine._run = counted
    step = engine.train_step(batch, 0.0).result()
    assert step.loss == pytest.approx(loss, rel=1e-5)
    # Forward and graph once each; of a block all but the last layer once more.
    assert runs == 6 + 6 + (6 - len(kept))
    norm = sum(g.square().sum() for g in gradients.values()).sqrt()
    assert step.grad_norm == pytest.approx(float(norm), rel=1e-5)


def test_the_plan_of_a_step_without_offload_stays_in_hbm():
    config = tiny_config("3B-mini", 6)
    with pytest.raises(PlanMismatch, match="HBM alone"):
        build_planned(setup_of(config, plan_of(config, (0,), away=(3,))))
    with pytest.raises(PlanMismatch, match="give --plan"):
        build_planned(setup_of(config))


def test_the_hybrid_operator_steps_as_the_plain_one_where_state_is_fp32():
    config = tiny_config("3B-mini", 3)
    plain, hybrid = build(setup_of(config)), build_hybrid(setup_of(config))
    assert hybrid.optimizer_state == "hybrid-0.02"
    assert hybrid.kernel != plain.kernel
    for seed in range(3):
        steps = [
            engine.train_step(ragged_batch(seed), 1e-3).result()
            for engine in (plain, hybrid)
        ]
        assert steps[1].loss == pytest.approx(steps[0].loss, rel=2e-4)
        assert steps[1].grad_norm == pytest.approx(steps[0].grad_norm, rel=2e-3)
