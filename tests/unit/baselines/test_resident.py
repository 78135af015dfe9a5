"""The resident rival's loss and gradients are those of plain autograd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from lazytrain.baselines import resident_body
from lazytrain.baselines.initial import build_model
from lazytrain.baselines.resident import ResidentEngine, build, build_no_recompute
from lazytrain.baselines.resident_state import ResidentAdamW
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.executor.bodies import num_graphs
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup

CPU = torch.device("cpu")


def setup(name: str, layers: int, body: str = "eager") -> EngineSetup:
    config = model_config(name)
    config.num_hidden_layers = layers
    config.layer_types = config.layer_types[:layers]
    return EngineSetup(
        model_config=config,
        state_dict=None,
        optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1.0),
        executor=ExecutorSettings(loss_chunk_tokens=7, body=body),
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


def truth(given: EngineSetup, rows: Batch):
    """Return the loss and the model with its gradients by plain autograd."""
    model = build_model(given.model_config, 5, torch.float32, CPU)
    logits = model(rows.input_ids, attention_mask=rows.attention_mask).logits
    loss = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), rows.labels[:, 1:].flatten(), ignore_index=IGNORE
    )
    loss.backward()
    return loss.item(), model


def gradients(engine: ResidentEngine, rows: Batch) -> tuple[float, dict]:
    """Return the mean loss and each parameter's gradient before the update."""
    seen = {}

    def note(**_: object) -> None:
        seen.update({n: p.grad.clone() for n, p in engine._named})

    engine._adamw.update = note
    return engine.train_step(rows, 1e-2).result().loss, seen


def check_gradients(given: EngineSetup, *, recompute: bool) -> None:
    rows = batch()
    loss, model = truth(given, rows)
    found, grads = gradients(ResidentEngine(given, recompute=recompute), rows)
    assert found == pytest.approx(loss, rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            grads[name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name
        )


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    ("name", "body"),
    [("3B-mini", "eager"), ("7B-mini", "eager"), ("3B-mini", "compile")],
)
def test_loss_and_gradients_are_those_of_autograd(name, recompute, body):
    check_gradients(setup(name, 2, body), recompute=recompute)


def test_a_layer_on_another_layers_weights_is_seen(monkeypatch):
    build = resident_body._Compiled.__init__

    def wrong(self, *given):
        build(self, *given)
        self._layers[1] = self._layers[0]

    monkeypatch.setattr(resident_body._Compiled, "__init__", wrong)
    with pytest.raises((AssertionError, AttributeError)):  # wrong, or none at all
        check_gradients(setup("3B-mini", 2, "compile"), recompute=True)


def test_all_layers_share_one_graph():
    torch._dynamo.reset()
    rows = batch()
    engine = ResidentEngine(setup("3B-mini", 6, "compile"))
    before = num_graphs()
    engine.train_step(rows, 1e-2)
    assert num_graphs() - before == 2  # the layers' and the final norm's
    engine.train_step(rows, 5e-3)
    assert num_graphs() - before == 2
    engine.evaluate_loss(rows)
    assert num_graphs() - before == 4  # once more without gradients


def kept_bytes(recompute: bool, body: str) -> int:
    """Return the bytes that a forward keeps for backward, weights left out."""
    engine = ResidentEngine(setup("3B-mini", 4, body), recompute=recompute)
    weights = {p.untyped_storage().data_ptr() for _, p in engine._named}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = engine._hidden(batch())
    assert hidden.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("body", ["eager", "compile"])
def test_only_the_row_without_recompute_keeps_activations(body):
    assert kept_bytes(False, body) > 4 * kept_bytes(True, body)


def test_builders_differ_in_recompute_only():
    for make, checkpointing in ((build, True), (build_no_recompute, False)):
        engine = make(setup("3B-mini", 2))
        layer = engine._model.model.layers[0]
        assert layer.gradient_checkpointing == checkpointing


@pytest.mark.parametrize("master", ["fp32-split", "bf16-stochastic"])
def test_the_compiled_update_is_the_host_s(master):
    given = setup("3B-mini", 1)
    settings = OptimizerSettings(master=master, threads=1, weight_decay=0.1)
    models = [build_model(given.model_config, 5, torch.bfloat16, CPU) for _ in "ab"]
    for model, use_compiled in zip(models, (True, False), strict=True):
        named = list(model.named_parameters())
        adamw = ResidentAdamW(settings, named, use_compiled=use_compiled)
        for step in (1, 2):
            generator = torch.Generator().manual_seed(step)
            for _, parameter in named:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.grad = noise.to(torch.bfloat16)
            adamw.update(step=step, learning_rate=1e-3, scale=0.5)
        assert all(parameter.grad is None for _, parameter in named)
    for own, true in zip(models[0].parameters(), models[1].parameters(), strict=True):
        differing = own != true
        assert differing.float().mean() < 2e-3
        # A moment on the border of two codes may fall on either side.
        torch.testing.assert_close(own, true, rtol=2.0**-7, atol=1e-4)


@pytest.mark.parametrize("name", ["3B-mini", "7B-mini"])
def test_one_step_is_a_clipped_adamw_step(name):
    given = setup(name, 2)
    engine = ResidentEngine(given)
    rows = batch()
    loss, model = truth(given, rows)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    total, count = engine.evaluate_loss(rows)
    step = engine.train_step(rows, 1e-2).result()
    assert total / count == pytest.approx(loss, rel=1e-5)
    assert step.loss == pytest.approx(loss, rel=1e-5)
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
