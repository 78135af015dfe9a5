"""The arithmetic of one 8-bit AdamW step over ``[blocks, 4096]``, made to be compiled.

It is that of ``reference``, ``blockwise`` and ``masters``, without their waits for the
device: what changes from step to step comes in as tensors. Additions and products may
be fused, so values agree with the reference to the last fp32 bit or two, not exactly.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from lazytrain.optim import masters
from lazytrain.optim.blockwise import SMALLEST_SCALE, dynamic_map
from lazytrain.optim.state import BLOCK, Master

# Worked out before tracing, which would look through the cache.
_LINES: Final = {
    is_signed: dynamic_map(is_signed).encode for is_signed in (True, False)
}


def _line(slope: Tensor, x: Tensor, offset: float) -> Tensor:
    """Return ``slope * x + offset`` in fp64; the product of two fp32 is exact there."""
    return slope.double() * x.double() + offset


def _decode(codes: Tensor, scale: Tensor, table: Tensor) -> Tensor:
    """Return fp32 moments ``[blocks, 4096]``."""
    return table[codes.to(torch.int64)] * scale.unsqueeze(1)


def _inverse(scale: Tensor, is_signed: bool) -> Tensor:
    """Return ``blockwise``'s factor per block without its wait for the device.

    In fp64 the quotient is correctly rounded everywhere; one step up is then more than
    any scale needs.
    """
    slope, offset = _LINES[is_signed][-1]
    top = 128.0 if is_signed else 255.0
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    inverse = torch.where(
        scale > 0, safe.double().reciprocal().float(), torch.zeros_like(scale)
    )
    short = (scale > 0) & (_line(slope * inverse, scale, offset).float() < top)
    upward = (inverse.view(torch.int32) + 1).view(torch.float32)
    return torch.where(short, upward, inverse)


def _encode(values: Tensor, is_signed: bool) -> tuple[Tensor, Tensor]:
    """Return uint8 codes ``[blocks, 4096]`` and fp32 scales ``[blocks]``."""
    magnitude = values.abs()
    scale = magnitude.amax(dim=1)
    scale = torch.where(scale >= SMALLEST_SCALE, scale, torch.zeros_like(scale))
    inverse = _inverse(scale, is_signed).unsqueeze(1)
    lines = _LINES[is_signed]
    u = _line(lines[0][0] * inverse, magnitude, lines[0][1])
    for slope, offset in lines[1:]:
        u = torch.minimum(u, _line(slope * inverse, magnitude, offset))
    # Rounding keeps order, so the least line may be rounded alone.
    numbers = u.float().to(torch.int32)
    if is_signed:
        codes = (torch.where(values < 0, -numbers, numbers) + 127).clamp(min=0)
    else:
        codes = torch.where(values > 0, numbers.clamp(min=1), numbers)
    return codes.to(torch.uint8), scale


def _load(weight: Tensor, remainder: Tensor | None, master: Master) -> Tensor:
    """Return the masters in fp32; 16-bit weights come as their bits in int16."""
    if master == "fp32":
        return weight
    bits = weight.to(torch.int32) << 16
    if remainder is not None:
        bits = bits + remainder.to(torch.int32)
    return bits.view(torch.float32)


def _store(
    weight: Tensor,
    remainder: Tensor | None,
    value: Tensor,
    master: Master,
    place: tuple[Tensor, Tensor],
) -> None:
    """Write the masters back in their format."""
    if master == "fp32":
        weight.copy_(value)
        return
    bits = value.view(torch.int32)
    if remainder is not None:
        weight.copy_(((bits + 0x8000) >> 16).to(torch.int16))
        remainder.copy_(bits.to(torch.int16))
    elif master == "bf16-stochastic":
        first, key = place
        random = _random_bits(value, first, key)
        weight.copy_(((bits + random) >> 16).to(torch.int16))
    else:
        # To nearest, ties to even, as the conversion to bf16 does for finite values.
        nearest = bits + 0x7FFF + ((bits >> 16) & 1)
        weight.copy_((nearest >> 16).to(torch.int16))


def _random_bits(like: Tensor, first: Tensor, key: Tensor) -> Tensor:
    """Return ``masters.random_bits`` of a chunk, with position and key as tensors."""
    count = like.shape[0] * BLOCK
    index = torch.arange(count, dtype=torch.int64, device=like.device) + first
    return masters.mixed_bits(index, key).view(-1, BLOCK)


def update_blocks(
    master: Master,
    weight: Tensor,
    remainder: Tensor | None,
    gradient: Tensor,
    codes: tuple[Tensor, Tensor],
    scales: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor],
    numbers: Tensor,
    place: tuple[Tensor, Tensor],
) -> None:
    """Update one chunk in place; all of its tensors are ``[blocks, ...]``.

    ``numbers`` are fp32: clip factor, what decay keeps, 1 - beta1, beta2, 1 - beta2,
    root of the second bias correction, eps, step size.
    """
    factor, keep, lerp, beta2, rest2, root2, eps, size = numbers.unbind()
    given = gradient.float() * factor
    first = _decode(codes[0], scales[0], tables[0])
    second = _decode(codes[1], scales[1], tables[1])
    first = first + lerp * (given - first)
    second = second * beta2 + rest2 * given * given
    value = _load(weight, remainder, master) * keep
    value = value - size * first / (second.sqrt() / root2 + eps)
    _store(weight, remainder, value, master, place)
    for held, scale, moment, is_signed in (
        (codes[0], scales[0], first, True),
        (codes[1], scales[1], second, False),
    ):
        new_codes, new_scale = _encode(moment, is_signed)
        held.copy_(new_codes)
        scale.copy_(new_scale)
