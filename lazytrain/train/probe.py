"""The trainer's own logits on a few tokens, with one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from lazytrain.executor.bodies import Bodies
from lazytrain.models.decoder import Decoder, PartShape

ROWS, TOKENS = 2, 24


def probe_ids(vocab_size: int) -> Tensor:
    """Return fixed token ids ``[B, T]`` from all over the vocabulary."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab_size, (ROWS, TOKENS), generator=generator)


def _tensors(
    part: PartShape, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    return {name: weights[part.prefix + name].to(dtype) for name in part.tensors}


def trainer_logits(
    config: Any, weights: Mapping[str, Tensor], ids: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return logits ``[B, T, V]`` of the layer functions that the executor trains.

    Args:
        config: Hugging Face configuration.
        weights: Weights by Hugging Face name, read part by part.
        ids: Token ids ``[B, T]``.
        dtype: Dtype to compute in.
    """
    decoder = Decoder(config)
    first, *layers, last = decoder.parts
    names = {part.layer_type: list(part.tensors) for part in layers}
    bodies = Bodies(decoder, names, "eager")
    cos, sin = decoder.rotary(ids.shape[1], ids.device, dtype)
    with torch.no_grad():
        table = _tensors(first, weights, dtype)["weight"]
        hidden = F.embedding(ids, table)
        if not decoder.tied:
            del table
        for part in layers:
            body = bodies.of(part.layer_type, "inputs", graph=False)
            tensors = _tensors(part, weights, dtype)
            hidden = body(hidden, cos, sin, list(tensors.values()), None)
        head = _tensors(last, weights, dtype)
        projection = table if decoder.tied else head.pop("lm_head.weight")
        norm = {name.removeprefix("model.norm."): t for name, t in head.items()}
        normed: Tensor = functional_call(decoder.norm(), norm, (hidden,))
        return F.linear(normed, projection)
