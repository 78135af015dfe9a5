"""Plans, batches and the plain-autograd truth that executor tests share."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.executor.engine import EngineOptions, StreamingEngine
from lazytrain.models.decoder import Decoder
from lazytrain.models.scales import model_config
from lazytrain.schedule.plan import (
    LETTERS,
    Boundary,
    Gradient,
    Group,
    OptimizerState,
    Part,
    Plan,
    Solve,
    Template,
    blocks_of,
)

NO_CLIPPING = 1e9


def small_config(name: str = "3B-mini", layers: int | None = None) -> Any:
    """Return a stand-in's configuration, optionally with fewer layers."""
    config = model_config(name)
    if layers is not None:
        config.num_hidden_layers = layers
        config.layer_types = config.layer_types[:layers]
    return config


def plan_for(
    config: Any,
    homes: str,
    *,
    batch: int = 4,
    seq_len: int = 24,
    micro_batch: int = 2,
    level: str | tuple[str, ...] = "inputs",
    order: str = "layer-major",
    body: str = "eager",
    mode: str = "replay",
    state: str = "fp32",
    **fields: Any,
) -> Plan:
    """Return a plan from a string of homes over G, C, N, R."""
    decoder = Decoder(config)
    places = tuple(LETTERS[letter] for letter in homes)
    layers = decoder.num_layers
    levels = (level,) * layers if isinstance(level, str) else level
    resident = fields.pop("resident", ())
    waiting = fields.pop("waiting", ())
    sum_home = "gpu" if order == "batch-major" else "cpu"
    parts = tuple(
        Part(
            name=part.name,
            kind=part.kind,
            layer_type=part.layer_type,
            num_parameters=part.num_parameters,
            weight_bytes=4 * part.num_parameters,
            weights="resident" if part.name in resident else "streamed",
            gradient=Gradient(
                dtype="fp32",
                home=sum_home,
                drain="as-consumed" if part.name in waiting else "whole",
            ),
            optimizer_state=OptimizerState(
                format=state,
                eight_bit_fraction=0.02 if state == "hybrid" else 0.0,
                master="fp32",
            ),
        )
        for part in decoder.parts
    )
    values = {
        "name": "test",
        "model": "test",
        "instance_sha256": "",
        "num_layers": layers,
        "layer_types": decoder.layer_types,
        "batch": batch,
        "seq_len": seq_len,
        "boundaries": tuple(Boundary(home=home, size_bytes=0) for home in places),
        "blocks": blocks_of(places, mode),
        "groups": (
            Group(
                sequences=batch, micro_batch=micro_batch, order=order, save_level=levels
            ),
        ),
        "parts": parts,
        "templates": tuple(
            Template(layer_type=kind, save_level=name, body=body)
            for kind in sorted(set(decoder.layer_types))
            for name in sorted(set(levels))
        ),
        "loss_chunk_tokens": 16,
        "solve": Solve(status="heuristic", method="test", objective_s=0.0),
    }
    return Plan(**(values | fields))


def random_batch(
    vocab: int, *, rows: int = 4, tokens: int = 24, seed: int = 0
) -> Batch:
    """Return rows of unequal lengths with unequal supervised stretches."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (rows, tokens), generator=generator)
    lengths = torch.randint(tokens // 2, tokens + 1, (rows,), generator=generator)
    lengths[0] = tokens
    starts = torch.randint(0, tokens // 2, (rows,), generator=generator)
    labels = ids.clone()
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        labels[row, :start] = -100
        labels[row, length:] = -100
        ids[row, length:] = 0
    return Batch(ids, labels, lengths)


def engine_for(
    config: Any,
    plan: Plan,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    settings: OptimizerSettings | None = None,
    seed: int = 0,
    tier: Any = None,
    state_dict: dict[str, Tensor] | None = None,
    **options: Any,
) -> StreamingEngine:
    """Return an engine whose released buffers are poisoned."""
    options = {"poison": True, "kernel": "reference"} | options
    return StreamingEngine(
        config,
        plan,
        settings or OptimizerSettings(type="adamw", max_grad_norm=NO_CLIPPING),
        dtype=dtype,
        device=torch.device(device),
        seed=seed,
        tier=tier,
        state_dict=state_dict,
        options=EngineOptions(**options),
    )


def weights_of(engine: StreamingEngine) -> dict[str, Tensor]:
    """Return a copy of all weights by Hugging Face name."""
    return {name: tensor.clone() for name, tensor in engine.named_weights()}


def gradients_of(engine: StreamingEngine) -> dict[str, Tensor]:
    """Return a copy of the last step's gradients by Hugging Face name."""
    return {name: tensor.clone() for name, tensor in engine.host_gradients()}


def reference_model(
    config: Any, weights: dict[str, Tensor], dtype: torch.dtype, device: str = "cpu"
) -> Any:
    """Return the plain Hugging Face model with these weights."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    if config.tie_word_embeddings:
        model.tie_weights()
    for module in model.modules():
        # The truth is plain torch, not a kernel that an installed package brings.
        if hasattr(module, "chunk_gated_delta_rule"):
            home = sys.modules[type(module).__module__]
            module.chunk_gated_delta_rule = home.torch_chunk_gated_delta_rule
    return model.to(device=device, dtype=dtype).train()


def reference_loss(model: Any, batch: Batch) -> Tensor:
    """Return the mean loss over supervised tokens by plain autograd."""
    device = next(model.parameters()).device
    output = model(
        input_ids=batch.input_ids.to(device),
        attention_mask=batch.attention_mask.to(device),
    )
    logits = output.logits[:, :-1].flatten(0, 1)
    labels = batch.labels[:, 1:].flatten().to(device)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide, labels, ignore_index=-100)


def reference_gradients(
    config: Any,
    weights: dict[str, Tensor],
    batch: Batch,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients by plain autograd."""
    model = reference_model(config, weights, dtype, device)
    loss = reference_loss(model, batch)
    loss.backward()
    return loss.item(), {n: p.grad.cpu() for n, p in model.named_parameters()}


def relative_error(value: Tensor, truth: Tensor) -> float:
    """Return the norm of the difference over the norm of the truth."""
    difference = (value.double() - truth.double()).norm()
    return float(difference / truth.double().norm().clamp_min(1e-30))
