"""The resident rival's loss and gradients are those of plain autograd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from lazytrain.baselines.initial import build_model
from lazytrain.baselines.resident import ResidentEngine
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup

CPU = torch.device("cpu")


def setup(name: str, layers: int) -> EngineSetup:
    config = model_config(name)
    config.num_hidden_layers = layers
    config.layer_types = config.layer_types[:layers]
    return EngineSetup(
        model_config=config,
        state_dict=None,
        optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1.0),
        executor=ExecutorSettings(loss_chunk_tokens=7),
        batch=2,
        seq_len=12,
        dtype=torch.float32,
        device=CPU,
        seed=5,
        scratch=Path(),
    )


def batch() -> Batch:
    ids = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :4] = IGNORE
    labels[1, 9:] = IGNORE
    return Batch(ids, labels, torch.tensor([12, 9]))


@pytest.mark.parametrize("name", ["3B-mini", "7B-mini"])
def test_one_step_is_a_clipped_adamw_step(name):
    given = setup(name, 2)
    engine = ResidentEngine(given)
    rows = batch()
    model = build_model(given.model_config, 5, torch.float32, CPU)
    logits = model(rows.input_ids, attention_mask=rows.attention_mask).logits
    loss = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), rows.labels[:, 1:].flatten(), ignore_index=IGNORE
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    total, count = engine.evaluate_loss(rows)
    step = engine.train_step(rows, 1e-2).result()
    assert total / count == pytest.approx(loss.item(), rel=1e-5)
    assert step.loss == pytest.approx(loss.item(), rel=1e-5)
    assert step.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    # The first AdamW step from zero moments is the gradient's sign times the rate.
    weights = dict(engine.named_weights())
    for key, parameter in model.named_parameters():
        clear = parameter.grad.abs() > 1e-5
        expected = (parameter - 1e-2 * parameter.grad.sign())[clear]
        torch.testing.assert_close(weights[key][clear], expected, atol=2e-4, rtol=0)


def test_training_lowers_the_loss():
    engine = ResidentEngine(setup("3B-mini", 2))
    losses = [engine.train_step(batch(), 3e-3).result().loss for _ in range(8)]
    assert losses[-1] < losses[0] - 1
    engine.close()
