"""Models to evaluate: a trained folder, or the weights that a run began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder


def device_for(accelerator: str) -> torch.device:
    """Return where a sheet's models are evaluated: the GPU, or the CPU sheet's CPU."""
    wants_gpu = accelerator.split("-")[0] != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if wants_gpu else "cpu")


def load_model(folder: Path, device: torch.device) -> Any:
    """Load a Hugging Face folder for generation, in the type it was saved in.

    Raises:
        InvalidInput: If the folder holds no causal language model.
    """
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise InvalidInput("weights", str(folder), "the folder holds no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("weights", str(folder), reason) from error
    return model.to(device)


def initial_model(trained: Any, seed: int, device: torch.device) -> Any:
    """Return a model like ``trained`` with the seeded weights its run began with."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        trained.config, attn_implementation="sdpa", dtype=trained.dtype
    )
    decoder = Decoder(trained.config)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for part in decoder.parts:
            tensors = decoder.initial_tensors(part, seed, torch.device("cpu"))
            for name, tensor in tensors.items():
                parameters[part.prefix + name].copy_(tensor)
    return model.to(device)
