"""Where a run's model comes from: shapes with random weights, a folder, or a hub id.

An unreachable hub id is an error that says how to go on, never a silent fallback to
random weights. Weights of a folder are read tensor by tensor, so that a model may be
larger than the free memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lazytrain.data.prompts import load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder
from lazytrain.models.gguf import SUFFIX, GgufFile, gguf_config, is_gguf
from lazytrain.models.given import GivenWeights
from lazytrain.models.load import (
    folder_config,
    folder_generation,
    safetensors_folder,
)
from lazytrain.models.scales import model_config

RANDOM = "random"
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.txt", "*.model"]


@dataclass(frozen=True)
class Source:
    """A model to train.

    Attributes:
        config: Hugging Face configuration.
        state_dict: Weights by Hugging Face name; None: random.
        tokenizer: Its tokenizer.
        generation: Its generation settings, if it has any of its own.
    """

    config: Any
    state_dict: Mapping[str, Tensor] | None
    tokenizer: Any
    generation: Any = None


def _fetch(weights: str) -> Path:
    """Return the GGUF file or the folder of a path, or the folder of a hub id.

    Raises:
        InvalidInput: If it is neither there nor a reachable id.
    """
    if Path(weights).is_dir() or is_gguf(Path(weights)):
        return Path(weights)
    if weights.endswith(SUFFIX):
        raise InvalidInput("weights", weights, "there is no such GGUF file")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(weights, allow_patterns=_PATTERNS))
    except (OSError, HfHubHTTPError, HFValidationError, ValueError) as error:
        remedy = (
            "is no folder and cannot be fetched from the hub; give a folder that holds "
            "config.json and safetensors, a GGUF file, or weights: random"
        )
        raise InvalidInput("weights", weights, remedy) from error


def pretrained_config(folder: Path) -> Any:
    """Return a folder's or a GGUF file's configuration, if it is that of a decoder.

    Raises:
        InvalidInput: If there is none, or it is no causal language model's.
    """
    from transformers import AutoModelForCausalLM

    config = gguf_config(folder) if is_gguf(folder) else folder_config(folder)
    is_causal = type(config) in AutoModelForCausalLM._model_mapping
    if not is_causal or getattr(config, "is_encoder_decoder", False):
        remedy = "is not a decoder-only language model; choose a causal LM"
        raise InvalidInput("weights", config.model_type, remedy)
    # Some encoders have a causal variant too: only the modules tell.
    Decoder(config)
    return config


def _check_shape(config: Any, model: str) -> None:
    """Refuse weights of another shape than the run sheet's model."""
    wanted = model_config(model)
    for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"):
        here, there = getattr(config, name), getattr(wanted, name)
        if here != there:
            remedy = f"{name} is {here}, but the sheet's {model} has {there}"
            raise InvalidInput("weights", config.model_type, remedy)


def load_source(weights: str, model: str | None) -> Source:
    """Return the model to train.

    Args:
        weights: ``random``, a folder, a GGUF file or a hub id.
        model: A name of the shape table; None takes the folder's shape as it is.

    Raises:
        InvalidInput: If the weights cannot be had, are no decoder's, or have another
            shape than ``model`` or than their configuration says.
    """
    if weights == RANDOM:
        if model is None:
            raise InvalidInput("weights", weights, "random weights need a model name")
        config = model_config(model)
        return Source(config, None, load_tokenizer(RANDOM, config.vocab_size))
    folder = _fetch(weights)
    config = pretrained_config(folder)
    if model is not None:
        _check_shape(config, model)
    tokenizer = load_tokenizer(str(folder), config.vocab_size)
    files: Mapping[str, Tensor]
    files = GgufFile(folder) if is_gguf(folder) else safetensors_folder(folder)
    state = GivenWeights(Decoder(config), files)
    return Source(config, state, tokenizer, folder_generation(folder))


def model_folder_source(folder: Path, weights: Mapping[str, Tensor]) -> Source:
    """Return a model whose weights lie elsewhere than configuration and tokenizer.

    Raises:
        InvalidInput: If the folder holds no configuration or tokenizer.
    """
    config = pretrained_config(folder)
    tokenizer = load_tokenizer(str(folder), config.vocab_size)
    return Source(config, weights, tokenizer, folder_generation(folder))
