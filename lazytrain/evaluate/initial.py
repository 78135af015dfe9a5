"""Models to evaluate: a trained folder, or the weights that a run began with."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.evaluate.live import live_model
from lazytrain.evaluate.streamed import (
    fits,
    folder_bytes,
    streamed_folder,
    streamed_model,
)
from lazytrain.models.decoder import Decoder
from lazytrain.models.gguf import GgufFile, gguf_config, is_gguf
from lazytrain.models.given import GivenWeights
from lazytrain.models.load import ADAPTER, folder_config, folder_generation

Stream = Literal["auto", "always", "never"]
log = logging.getLogger(__name__)


def device_for(accelerator: str) -> torch.device:
    """Return where a sheet's models are evaluated: the GPU, or the CPU sheet's CPU."""
    wants_gpu = accelerator.split("-")[0] != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if wants_gpu else "cpu")


def load_model(folder: Path, device: torch.device, stream: Stream = "auto") -> Any:
    """Load a model for generation, in the type it was saved in.

    Args:
        folder: The model's Hugging Face folder, or its GGUF file, which is unpacked to
            bfloat16 on a GPU and to float32 elsewhere.
        device: Where to generate.
        stream: Whether layers stream through the device; ``auto``: if it cannot hold
            them all.

    Raises:
        InvalidInput: If the folder holds no causal language model.
    """
    check_is_model(folder)
    if is_gguf(folder):
        return _gguf_model(folder, device, stream)
    is_large = stream == "auto" and not fits(folder_bytes(folder), device)
    if is_large or stream == "always":
        log.warning("%s: layers stream through %s", folder, device)
        return streamed_folder(folder, device)
    return _whole(folder).to(device)


def check_is_model(path: Path) -> None:
    """Refuse a path that is neither a model's folder nor a GGUF file.

    Raises:
        InvalidInput: Saying what it is instead.
    """
    if not (is_gguf(path) or (path / "config.json").is_file()):
        raise InvalidInput("weights", str(path), _no_model(path))


def _no_model(folder: Path) -> str:
    """Say what is wrong with a path that holds no model, and what to give."""
    inner = folder / "weights"
    if (inner / "config.json").is_file():
        return f"is a run; give its weights, {inner}"
    if (folder / "manifest.json").is_file() or (folder / "checkpoints").is_dir():
        return (
            "is a checkpoint or an unfinished run; give what `lazytrain export` makes"
        )
    if (folder / ADAPTER).is_file():
        return "is an adapter (LoRA); merge it into its base model and save that"
    if not folder.exists():
        return "there is no such folder or GGUF file; hub ids are not fetched here"
    return "holds no config.json; give a model's folder or a GGUF file"


def _whole(folder: Path) -> Any:
    """Return a folder's model with no weight left to chance.

    Raises:
        InvalidInput: If a weight is missing, of another shape, or cannot be read.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    folder_config(folder)
    folder_generation(folder)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="auto",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("weights", str(folder), reason) from error
    # transformers draws these at random, and the answers would be those of no model.
    wrong = sorted(map(str, {*report["missing_keys"], *report["mismatched_keys"]}))
    if wrong:
        remedy = "is missing or of another shape than config.json says"
        raise InvalidInput("weights", f"{folder}: {', '.join(wrong[:3])}", remedy)
    return model


def _gguf_model(path: Path, device: torch.device, stream: Stream) -> Any:
    """Return the model of a GGUF file."""
    config = gguf_config(path)
    decoder = Decoder(config)
    weights = GivenWeights(decoder, GgufFile(path))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = decoder.num_parameters * dtype.itemsize
    if stream == "always" or (stream == "auto" and not fits(size, device)):
        log.warning("%s: layers stream through %s", path, device)
        return streamed_model(config, weights, device, dtype)
    return live_model(config, weights, device, dtype)


class InitialWeights(Mapping[str, Tensor]):
    """A run's seeded weights by Hugging Face name, one part made at a time."""

    def __init__(self, config: Any, seed: int) -> None:
        self._decoder = Decoder(config)
        self._seed = seed
        self._parts = {
            part.prefix + name: part
            for part in self._decoder.parts
            for name in part.tensors
        }
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return one weight, float32."""
        if name not in self._made:
            part, cpu = self._parts[name], torch.device("cpu")
            made = self._decoder.initial_tensors(part, self._seed, cpu)
            self._made = {part.prefix + key: value for key, value in made.items()}
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._parts)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._parts)


def initial_model(trained: Any, seed: int, device: torch.device) -> Any:
    """Return a model like ``trained`` with the seeded weights its run began with."""
    from transformers import AutoModelForCausalLM

    weights = InitialWeights(trained.config, seed)
    if hasattr(trained, "stream"):
        return streamed_model(trained.config, weights, device, trained.dtype)
    model = AutoModelForCausalLM.from_config(
        trained.config, attn_implementation="sdpa", dtype=trained.dtype
    )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
    return model.to(device)
