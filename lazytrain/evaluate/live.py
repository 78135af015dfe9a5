"""The weights of a training that goes on, as a transformers model that can generate.

The module is built without weights, which takes a fraction of a second at any size, and
its parameters are bound to copies in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lazytrain.evaluate.streamed import (
    bind,
    checked,
    refuse_lost_state,
    renew_rotary,
    streamed_model,
)
from lazytrain.models.decoder import Decoder


def live_model(
    config: Any,
    weights: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
    room_bytes: int | None = None,
) -> Any:
    """Return a model that generates with these weights.

    Args:
        config: Hugging Face configuration of a causal language model.
        weights: Weights by Hugging Face name, on the host.
        device: Where to generate.
        dtype: Dtype of weights and hidden states.
        room_bytes: Memory of the device that is free; where the weights take more than
            half of it, layers stream through. None: no limit.

    Raises:
        InvalidInput: If a weight is missing or has another shape, or the model holds
            state beside its weights that is not known here.
    """
    decoder = Decoder(config)
    if room_bytes is not None:
        size = decoder.num_parameters * dtype.itemsize
        if 2 * size > room_bytes:
            return streamed_model(config, weights, device, dtype)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=dtype
        )
    for part in decoder.parts:
        tensors = {
            part.prefix + name: checked(weights, part, name).to(
                device, dtype, copy=True
            )
            for name in part.tensors
        }
        bind(model, tensors)
    model.tie_weights()
    renew_rotary(model, config, device)
    refuse_lost_state(model)
    return model.eval()
