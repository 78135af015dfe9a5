"""Writing tensors to safetensors files straight from where they lie.

No tensor is copied: its bytes go from host memory to the file and through sha256 on the
way, so that saving a model takes no memory beside the model. One that lives on a tier
is read when its turn comes, so that each writer holds one such tensor at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.records import Contract
from lazytrain.tiers.deferred import DeferredTensor, loaded
from lazytrain.units import GIB, MIB

SHARD_BYTES: Final = 4 * GIB
WRITERS: Final = 4
_PIECE: Final = 16 * MIB
# A tensor in host memory, or one that is read when it is written.
AnyTensor = Tensor | DeferredTensor
_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class FileSum(Contract):
    """What a written file must be: its length and the sha256 of its bytes."""

    size_bytes: int
    sha256: str


def _header(tensors: Mapping[str, AnyTensor]) -> bytes:
    """Return the head of a safetensors file: length, then names, types and places.

    Raises:
        InvalidInput: If a tensor has a dtype that the format does not know.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise InvalidInput(name, tensor.dtype, "safetensors has no such dtype")
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    # The data start at a multiple of eight bytes, as readers that map files like it.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview[int]:
    """Return a host tensor's bytes without a copy."""
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor]) -> FileSum:
    """Write one safetensors file and wait until it is on the disk.

    Tensors are ordered widest element first, so that each lies aligned.

    Raises:
        OSError: If the file cannot be written whole.
    """
    try:
        return _written(path, tensors)
    except OSError as error:
        error.filename = str(path)  # a full disk names no file by itself
        raise


def _written(path: Path, tensors: Mapping[str, AnyTensor]) -> FileSum:
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        head = memoryview(_header(dict(ordered)))
        bodies = (_bytes_of(loaded(tensor)) for _, tensor in ordered)
        for block in chain((head,), bodies):
            for start in range(0, len(block), _PIECE):
                piece = block[start : start + _PIECE]
                file.write(piece)
                digest.update(piece)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return FileSum(size_bytes=size, sha256=digest.hexdigest())


def shards(
    tensors: Iterable[tuple[str, AnyTensor]], shard_bytes: int
) -> list[dict[str, AnyTensor]]:
    """Cut tensors into shards of at most ``shard_bytes``; a larger one stands alone."""
    found: list[dict[str, AnyTensor]] = [{}]
    size = 0
    for name, tensor in tensors:
        if found[-1] and size + tensor.nbytes > shard_bytes:
            found.append({})
            size = 0
        found[-1][name] = tensor
        size += tensor.nbytes
    return found


def write_shards(
    folder: Path,
    stem: str,
    tensors: Iterable[tuple[str, AnyTensor]],
    shard_bytes: int = SHARD_BYTES,
) -> tuple[dict[str, FileSum], dict[str, str]]:
    """Write live host tensors as ``stem-00001.safetensors`` and so on.

    Args:
        folder: Where to write.
        stem: First part of the files' names.
        tensors: Views of live memory, or what reads them; nothing may change them
            meanwhile.
        shard_bytes: Largest file.

    Returns:
        The sum of each file, and the file of each tensor.
    """
    parts: Sequence[dict[str, AnyTensor]] = shards(tensors, shard_bytes)
    names = [f"{stem}-{number:05d}.safetensors" for number in range(1, len(parts) + 1)]
    with ThreadPoolExecutor(WRITERS, thread_name_prefix="checkpoint") as pool:
        written = pool.map(
            lambda pair: write_tensors(folder / pair[0], pair[1]),
            zip(names, parts, strict=True),
        )
        sums = dict(zip(names, written, strict=True))
    where = {
        name: file for file, part in zip(names, parts, strict=True) for name in part
    }
    return sums, where
