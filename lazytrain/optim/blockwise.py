"""Block-wise 8-bit numbers on the dynamic map (Dettmers et al., 2022), built anew.

A block of 4096 values is stored as one fp32 absolute maximum and one code per value.
The map has seven decades below 1. Decade ``i`` (from ``10**(i-7)`` to ``10**(i-6)``) is
cut into equal cells, twice as many in each higher decade, and a code stands for the
middle of its cell; zero and one are codes of their own. The signed map spends half of
its codes on each sign, so its cells are twice as wide.

Number the cells so that decade ``i`` holds ``first * 2**i`` and up. Then the
real-valued cell number ``u`` of a value is linear in each decade, and since the slopes
fall, it is the *minimum* of seven lines; the code is ``floor(u)``. Back, the decade is
the exponent of ``code + 0.5`` as a float. Both directions are plain arithmetic.

Two departures from rounding to the nearest code: cells meet at the decades' borders
(there the nearest code may be the neighbour's), and a second moment above zero is never
stored as zero, because the update divides by its root.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from lazytrain.optim.state import BLOCK, num_blocks

DECADE_TOPS: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
DECADES: Final = len(DECADE_TOPS)
# Below it a line's slope over the scale could overflow, so it counts as zero.
SMALLEST_SCALE: Final = 2.0**-100


@dataclass(frozen=True)
class DynamicMap:
    """The lines of one codebook, all fp32 values held exactly in Python floats.

    ``encode`` gives ``u`` from a value in [0, 1]; ``decode`` gives a value from
    ``cell + 0.5``, one line per exponent (index ``(exponent - first_exponent) % 8``).
    """

    is_signed: bool
    encode: tuple[tuple[float, float], ...]
    decode: tuple[tuple[float, float], ...]
    codes_to_cells: tuple[int, ...]


def _fp32(value: float) -> float:
    """Round to the nearest fp32."""
    return float(torch.tensor(value, dtype=torch.float64).to(torch.float32))


def _fma(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """Return ``a * x + b`` rounded once to fp32 (products are exact in fp64)."""
    return (a.double() * x.double() + b.double()).float()


@cache
def dynamic_map(is_signed: bool) -> DynamicMap:
    """Construct the lines of the signed or of the unsigned map."""
    first = 1 if is_signed else 2
    encode, decode = [], []
    for i, top in enumerate(DECADE_TOPS):
        cells = first * 2**i
        offset = cells * 0.8 / 0.9 - (0 if is_signed else 1)
        encode.append((_fp32(cells / (0.9 * top)), _fp32(offset)))
        decode.append((_fp32(0.9 * top / cells), _fp32(-0.8 * top)))
    last = first * 2**DECADES
    slope = _top_slope(last, first)
    decode.append((slope, -slope * (first - 0.5)))
    if is_signed:
        cells_of = tuple(range(-last + 1, last + 1))
    else:
        cells_of = tuple(range(1, last + 1))
    return DynamicMap(is_signed, tuple(encode), tuple(decode), cells_of)


def _top_slope(last: int, first: int) -> float:
    """Return the slope of the line through the cells of zero and of one.

    Their exponents agree modulo 8, so one line serves both. The slope is cut to 17
    bits, which makes the zero exact; one becomes 1 - 2**-24 in the unsigned map.
    """
    return int(2.0**24 / (last - first + 1)) / 2.0**24


@cache
def codebook(is_signed: bool) -> Tensor:
    """Return the 256 values of a map in rising order, fp32."""
    lines = dynamic_map(is_signed)
    cells = torch.tensor(lines.codes_to_cells, dtype=torch.float32)
    middle = cells.abs() + 0.5
    exponent = torch.frexp(middle).exponent - 1
    index = (exponent if is_signed else exponent - 1) % 8
    slopes, offsets = torch.tensor(lines.decode).unbind(1)
    value = _fma(slopes[index], middle, offsets[index])
    return torch.copysign(value, cells)


def _code_numbers(values: Tensor, inverse: Tensor, is_signed: bool) -> Tensor:
    """Return ``floor(u)`` of fp32 magnitudes, as int32; ``inverse`` broadcasts."""
    u = torch.full_like(values, float("inf"))
    for slope, offset in dynamic_map(is_signed).encode:
        line = _fma(torch.tensor(slope) * inverse, values, torch.tensor(offset))
        u = torch.minimum(u, line)
    return u.to(torch.int32)


def _inverse_scale(scale: Tensor, is_signed: bool) -> Tensor:
    """Return the smallest factors, from 1 / scale up, that reach the top code."""
    slope, offset = (torch.tensor(x) for x in dynamic_map(is_signed).encode[-1])
    top = 128.0 if is_signed else 255.0
    inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
    upward = torch.full_like(inverse, float("inf"))
    while True:
        short = (scale > 0) & (_fma(slope * inverse, scale, offset) < top)
        if not bool(short.any()):
            return inverse
        inverse = torch.where(short, torch.nextafter(inverse, upward), inverse)


def encode(values: Tensor, is_signed: bool) -> tuple[Tensor, Tensor]:
    """Quantise a flat fp32 tensor by blocks.

    Returns:
        uint8 codes of the same size, and one fp32 absolute maximum per block.
    """
    count = values.numel()
    blocks = pad(values, (0, num_blocks(count) * BLOCK - count)).view(-1, BLOCK)
    scale = blocks.abs().amax(dim=1) if count else values.new_zeros(0)
    scale = torch.where(scale >= SMALLEST_SCALE, scale, torch.zeros_like(scale))
    inverse = _inverse_scale(scale, is_signed).unsqueeze(1)
    numbers = _code_numbers(blocks.abs(), inverse, is_signed)
    if is_signed:
        # -1 has no code of its own; without the clamp it would wrap round to +1.
        codes = (torch.where(blocks < 0, -numbers, numbers) + 127).clamp_(min=0)
    else:
        codes = torch.where(blocks > 0, numbers.clamp(min=1), numbers)
    return codes.to(torch.uint8).view(-1)[:count], scale


def decode(codes: Tensor, scale: Tensor, is_signed: bool) -> Tensor:
    """Return the fp32 values of a tensor quantised by :func:`encode`."""
    table = codebook(is_signed).to(codes.device)
    per_value = scale.repeat_interleave(BLOCK)[: codes.numel()]
    return table[codes.to(torch.int32)] * per_value
