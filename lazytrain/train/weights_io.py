"""Trained weights as a Hugging Face folder that any tool loads."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lazytrain.units import GIB

SHARD_BYTES = 4 * GIB


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
        # A view of a flat buffer would be written with the whole buffer behind it.
        shard[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        size += tensor.nbytes
    yield shard


def save_pretrained(
    folder: Path,
    weights: Iterable[tuple[str, Tensor]],
    config: Any,
    tokenizer: Any,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write safetensors, configuration and tokenizer; the folder appears when whole.

    Args:
        folder: Where to write; replaced if it is there.
        weights: Hugging Face names and host tensors, a tied head left out.
        config: Hugging Face configuration.
        tokenizer: Tokenizer to save beside the weights.
        shard_bytes: Largest file.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write_tensors(partial, weights, shard_bytes)
        config.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_tensors(
    folder: Path, weights: Iterable[tuple[str, Tensor]], shard_bytes: int
) -> None:
    """Write one ``model.safetensors``, or shards and their index."""
    names: list[dict[str, int]] = []
    for number, shard in enumerate(_shards(weights, shard_bytes)):
        save_file(shard, folder / f"part-{number}", metadata={"format": "pt"})
        (folder / f"part-{number}").chmod(0o644)
        names.append({name: tensor.nbytes for name, tensor in shard.items()})
    if len(names) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, shard_names in enumerate(names):
        file = f"model-{number + 1:05d}-of-{len(names):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        weight_map |= dict.fromkeys(shard_names, file)
    total = sum(sum(shard_names.values()) for shard_names in names)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=1, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
