"""Master weights: fp32 as two 16-bit halves, and bf16 with either rounding.

The split is ``hi = (bits + 0x8000) >> 16`` and ``lo = bits & 0xFFFF`` read as a signed
number; ``(hi << 16) + lo`` then gives every finite fp32 back exactly. ``hi`` is the
bf16 weight that is uploaded: it differs from round-to-nearest-even at ties only.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_MASK: Final = 0xFFFFFFFF
_SPREAD: Final = 0x9E3779B1
_MIX: Final = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


def split_master(master: Tensor) -> tuple[Tensor, Tensor]:
    """Split fp32 values into bf16 weights and int16 remainders of the same shape."""
    bits = master.contiguous().view(torch.int32)
    high = ((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
    return high, bits.to(torch.int16)


def join_master(weight: Tensor, remainder: Tensor) -> Tensor:
    """Return the fp32 values that ``split_master`` took apart."""
    high = weight.contiguous().view(torch.int16).to(torch.int32)
    return ((high << 16) + remainder.to(torch.int32)).view(torch.float32)


def rounding_key(step: int, salt: int) -> int:
    """Return the 32-bit key of a part's random roundings in one step."""
    return (step * 0x2545F491 + salt * 0x27D4EB2F) & _MASK


def random_bits(first: int, count: int, key: int, device: torch.device) -> Tensor:
    """Return 16 random bits per element, a pure function of position and key.

    Returns:
        int32 tensor of ``count`` values in 0..65535.
    """
    index = torch.arange(first, first + count, dtype=torch.int64, device=device)
    return mixed_bits(index, key)


def mixed_bits(index: Tensor, key: int | Tensor) -> Tensor:
    """Return 16 random bits for each int64 position, as int32."""
    mixed = (index * _SPREAD + key) & _MASK
    for shift, factor in _MIX:
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return ((mixed ^ (mixed >> 16)) & 0xFFFF).to(torch.int32)


def round_stochastic(master: Tensor, random: Tensor) -> Tensor:
    """Round fp32 to bf16, up with a probability equal to the part that is lost."""
    bits = master.contiguous().view(torch.int32)
    return ((bits + random) >> 16).to(torch.int16).view(torch.bfloat16)
