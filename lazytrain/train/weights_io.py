"""Trained weights as a Hugging Face folder that any tool loads."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lazytrain.models.load import INDEX, SINGLE
from lazytrain.train.source import Source
from lazytrain.train.tensor_files import SHARD_BYTES, write_tensors


def _shards(
    weights: Iterable[tuple[str, Tensor]], shard_bytes: int
) -> Iterable[dict[str, Tensor]]:
    """Group tensors into shards; only one shard is in memory at a time."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def save_pretrained(
    folder: Path,
    weights: Iterable[tuple[str, Tensor]],
    config: Any,
    tokenizer: Any,
    shard_bytes: int = SHARD_BYTES,
    generation: Any = None,
) -> None:
    """Write safetensors, configuration and tokenizer; the folder appears when whole.

    Args:
        folder: Where to write; replaced if it is there.
        weights: Hugging Face names and host tensors, a tied head left out.
        config: Hugging Face configuration.
        tokenizer: Tokenizer to save beside the weights.
        shard_bytes: Largest file.
        generation: Generation settings; None takes them from configuration and
            tokenizer.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        dtype = _write_tensors(partial, weights, shard_bytes)
        source = Source(config, None, tokenizer, generation)
        save_model_files(partial, source, dtype)
        partial.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_model_files(folder: Path, source: Source, dtype: torch.dtype) -> None:
    """Write everything of a model folder but the weights.

    Args:
        folder: Where to write.
        source: Configuration, tokenizer and generation settings.
        dtype: Of the weights; loaders take it from the configuration.
    """
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(source.config)
    config.dtype = dtype
    known = AutoModelForCausalLM._model_mapping
    if not config.architectures and type(config) in known:
        config.architectures = [known[type(config)].__name__]
    config.save_pretrained(folder)
    source.tokenizer.save_pretrained(folder)
    generation_settings(source).save_pretrained(folder)


def generation_settings(source: Source) -> Any:
    """Return a model's own generation settings, or greedy ones that stop at its end."""
    from transformers import GenerationConfig

    if source.generation is not None:
        return source.generation
    made = GenerationConfig.from_model_config(source.config)
    # So marked, loaders would make it anew from the configuration.
    made._from_model_config = False
    if made.eos_token_id is None:
        made.eos_token_id = source.tokenizer.eos_token_id
    if made.pad_token_id is None:
        made.pad_token_id = source.tokenizer.pad_token_id
    return made


def _write_tensors(
    folder: Path, weights: Iterable[tuple[str, Tensor]], shard_bytes: int
) -> torch.dtype:
    """Write one ``model.safetensors``, or shards and their index; return the dtype."""
    names: list[dict[str, int]] = []
    dtype = torch.float32
    for number, shard in enumerate(_shards(weights, shard_bytes)):
        write_tensors(folder / f"part-{number}", shard)
        names.append({name: tensor.nbytes for name, tensor in shard.items()})
        dtype = next((tensor.dtype for tensor in shard.values()), dtype)
    if len(names) == 1:
        (folder / "part-0").rename(folder / SINGLE)
        return dtype
    weight_map: dict[str, str] = {}
    for number, shard_names in enumerate(names):
        file = f"model-{number + 1:05d}-of-{len(names):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        weight_map |= dict.fromkeys(shard_names, file)
    total = sum(sum(shard_names.values()) for shard_names in names)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=1, sort_keys=True) + "\n"
    (folder / INDEX).write_text(text, encoding="utf-8")
    return dtype
