"""What one part's AdamW state is made of and where each tensor's share lies.

A part (embedding, one decoder layer, final norm and head) is one flat weight buffer.
Its tensors are slices of it; each slice has its moments either in fp32 or in blocks of
8-bit codes (paper, Section 3.5). Blocks start at their tensor's first element, so none
straddles two tensors. All tensors of a state are flat and may live on any device.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.optim.pages import zeros

BLOCK: Final = 4096
ALIGN: Final = 64

Master = Literal["fp32", "fp32-split", "bf16", "bf16-stochastic"]


@dataclass(frozen=True)
class TensorSlice:
    """One tensor inside a part's flat buffer; offset and size in elements."""

    name: str
    offset: int
    numel: int
    weight_decay: float


@dataclass(frozen=True)
class Placement:
    """Where a slice's moments start: in elements, and in blocks for its scales."""

    is_eight_bit: bool
    state_offset: int
    scale_offset: int


@dataclass(frozen=True)
class Moments:
    """First and second moments of a part: fp32 slices, then 8-bit slices.

    ``*_code`` are uint8 codes, ``*_scale`` one fp32 absolute maximum per block.
    """

    exp_avg: Tensor
    exp_avg_sq: Tensor
    exp_avg_code: Tensor
    exp_avg_sq_code: Tensor
    exp_avg_scale: Tensor
    exp_avg_sq_scale: Tensor


@dataclass(frozen=True)
class PartState:
    """Master weights and moments of one part.

    ``weight`` is the caller's flat buffer: the master itself (``fp32``, ``bf16``,
    ``bf16-stochastic``) or its high half (``fp32-split``, with ``remainder`` the low
    half). ``salt`` keeps the random roundings of two parts apart.
    """

    slices: tuple[TensorSlice, ...]
    placements: tuple[Placement, ...]
    master: Master
    weight: Tensor
    remainder: Tensor | None
    moments: Moments
    salt: int

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor a checkpoint needs beside the weight, by name."""
        named = dict(vars(self.moments))
        if self.remainder is not None:
            named["remainder"] = self.remainder
        return named

    @property
    def host_bytes(self) -> int:
        """Bytes the state adds to the weight buffer it belongs to."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def placed(self) -> Iterator[tuple[TensorSlice, Placement]]:
        """Yield every slice with its placement, in the buffer's order."""
        yield from zip(self.slices, self.placements, strict=True)


def num_blocks(numel: int) -> int:
    """Return how many blocks cover a tensor of ``numel`` elements."""
    return -(-numel // BLOCK)


def place(
    slices: Sequence[TensorSlice], eight_bit: Sequence[bool]
) -> tuple[Placement, ...]:
    """Lay the moments of a part's slices out one after the other."""
    cursor = {False: 0, True: 0}
    blocks = 0
    placements = []
    for piece, is_eight_bit in zip(slices, eight_bit, strict=True):
        placements.append(Placement(is_eight_bit, cursor[is_eight_bit], blocks))
        cursor[is_eight_bit] += -(-piece.numel // ALIGN) * ALIGN
        blocks += num_blocks(piece.numel) if is_eight_bit else 0
    return tuple(placements)


def check_slices(weight: Tensor, slices: Sequence[TensorSlice]) -> None:
    """Refuse slices that overlap, leave the buffer or run backwards.

    Raises:
        InvalidInput: Naming the first slice that is wrong.
    """
    if weight.dim() != 1 or not weight.is_contiguous():
        raise InvalidInput("weight", tuple(weight.shape), "pass a flat, dense buffer")
    end = 0
    for piece in slices:
        if piece.numel < 0 or piece.offset < end:
            remedy = f"slices must be in order and apart (free from {end})"
            raise InvalidInput(piece.name, piece.offset, remedy)
        end = piece.offset + piece.numel
        if end > weight.numel():
            remedy = f"ends behind the buffer of {weight.numel()} elements"
            raise InvalidInput(piece.name, end, remedy)


def _extent(placed: Sequence[tuple[TensorSlice, Placement]], eight_bit: bool) -> int:
    """Return the elements of moment storage that one format needs."""
    ends = [
        spot.state_offset + piece.numel
        for piece, spot in placed
        if spot.is_eight_bit == eight_bit
    ]
    return max(ends, default=0)


def new_moments(
    slices: Sequence[TensorSlice],
    placements: Sequence[Placement],
    device: torch.device,
) -> Moments:
    """Allocate zero moments; the pages stay untouched until the first update."""
    placed = list(zip(slices, placements, strict=True))
    wide, narrow = _extent(placed, False), _extent(placed, True)
    blocks = sum(num_blocks(piece.numel) for piece, spot in placed if spot.is_eight_bit)

    return Moments(
        exp_avg=zeros(wide, torch.float32, device),
        exp_avg_sq=zeros(wide, torch.float32, device),
        exp_avg_code=zeros(narrow, torch.uint8, device),
        exp_avg_sq_code=zeros(narrow, torch.uint8, device),
        exp_avg_scale=zeros(blocks, torch.float32, device),
        exp_avg_sq_scale=zeros(blocks, torch.float32, device),
    )


def salt_of(slices: Sequence[TensorSlice]) -> int:
    """Return a number that depends on the slices' names only."""
    return zlib.crc32("\n".join(piece.name for piece in slices).encode())


def bytes_per_parameter(
    master: Master, eight_bit: bool, gradient_bytes: int = 2
) -> float:
    """Return host bytes per parameter: weight, remainder, moments, gradient."""
    weight = {"fp32": 4, "fp32-split": 4, "bf16": 2, "bf16-stochastic": 2}[master]
    moments = 2 + 8 / BLOCK if eight_bit else 8
    return weight + moments + gradient_bytes
