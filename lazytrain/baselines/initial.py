"""The same initial weights for every system, whatever builds the model.

A rival that needs a whole Hugging Face model gets one filled with the values that our
executor gives its parts: same seed, same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder, PartShape


def part_tensors(
    decoder: Decoder,
    part: PartShape,
    seed: int,
    device: torch.device,
    state_dict: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return one part's tensors by local name: given ones, or seeded ones.

    Raises:
        InvalidInput: If ``state_dict`` lacks a tensor or has one of another shape.
    """
    if state_dict is None:
        return decoder.initial_tensors(part, seed, device)
    found = {}
    for name, shape in part.tensors.items():
        full = part.prefix + name
        if full not in state_dict:
            raise InvalidInput("weights", full, "the given weights lack this tensor")
        tensor = state_dict[full]
        if tuple(tensor.shape) != shape:
            given = tuple(tensor.shape)
            raise InvalidInput("weights", full, f"has shape {given}, needs {shape}")
        found[name] = tensor
    return found


def named_tensors(
    decoder: Decoder,
    seed: int,
    device: torch.device,
    state_dict: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by its Hugging Face name, one part in memory at a time."""
    for part in decoder.parts:
        for name, tensor in part_tensors(
            decoder, part, seed, device, state_dict
        ).items():
            yield part.prefix + name, tensor


def build_model(
    config: Any,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    state_dict: Mapping[str, Tensor] | None = None,
) -> Any:
    """Return a Hugging Face causal model in host memory with the shared weights.

    Args:
        config: Hugging Face configuration.
        seed: Seed of the initial weights, used where no ``state_dict`` is given.
        dtype: Type of the parameters.
        device: Where initial values are drawn; the model itself stays on the host.
        state_dict: Weights by Hugging Face name.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.to(dtype).to_empty(device="cpu")
    # Rotary frequencies are no parameters: emptied storage must be computed again.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    model.tie_weights()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in named_tensors(Decoder(config), seed, device, state_dict):
            # Rounded where it lies: see the executor's loading.
            parameters[name].copy_(tensor.to(parameters[name].dtype))
    return model
