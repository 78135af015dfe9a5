"""Checksums of chunks: a corrupted or truncated page is found on its first read.

xxh3 (64 bits) runs at the speed of memory and releases the GIL; zlib's crc32 stands in
where the ``xxhash`` package is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]
Checksum = Callable[[Tensor], int]  # over a flat uint8 tensor


def _xxh3() -> Checksum | None:
    """Return xxh3 over a byte array, or None without the package."""
    try:
        import xxhash
    except ImportError:
        return None
    digest: Any = xxhash.xxh3_64_intdigest
    return lambda data: int(digest(data.numpy()))


def _crc32(data: Tensor) -> int:
    """Return zlib's crc32 of host bytes."""
    return zlib.crc32(data.numpy().data)


def choose_checksum(takes_device: bool = False) -> tuple[str, Checksum]:
    """Return the name and the function of the fastest checksum at hand.

    Args:
        takes_device: Whether tensors may lie in device memory.
    """
    if takes_device:
        return "sum-64", device_checksum
    fast = _xxh3()
    return ("xxh3-64", fast) if fast is not None else ("crc32", _crc32)


def device_checksum(data: Tensor) -> int:
    """Return a sum of 8-byte words with odd weights, wherever the tensor lives.

    Any single changed bit changes it, and so do blocks that changed places. Device and
    host give the same value, so a page may be written from one and read to the other.
    """
    words = torch.nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
    weights = torch.arange(1, 2 * words.numel(), 2, device=data.device)
    return int((words * weights).sum().item())
