"""AdamW in plain torch: the truth in tests, and what runs without a compiler.

It works on any device, slice by slice in chunks of whole blocks, so the fp32 copies of
16-bit weights never exceed one chunk. The arithmetic is that of ``torch.optim.AdamW``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lazytrain.optim import blockwise, masters
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import BLOCK, PartState, Placement, TensorSlice

CHUNK: Final = 1024 * BLOCK


@dataclass(frozen=True)
class _Chunk:
    """A run of whole blocks of one slice; positions count elements."""

    piece: TensorSlice
    spot: Placement
    start: int
    count: int

    @property
    def weights(self) -> slice:
        first = self.piece.offset + self.start
        return slice(first, first + self.count)

    @property
    def moments(self) -> slice:
        first = self.spot.state_offset + self.start
        return slice(first, first + self.count)

    @property
    def scales(self) -> slice:
        first = self.spot.scale_offset + self.start // BLOCK
        return slice(first, first + -(-self.count // BLOCK))


def _load_moments(state: PartState, chunk: _Chunk) -> tuple[Tensor, Tensor]:
    """Return the chunk's moments in fp32: views, or decoded copies."""
    held = state.moments
    if not chunk.spot.is_eight_bit:
        return held.exp_avg[chunk.moments], held.exp_avg_sq[chunk.moments]
    first = blockwise.decode(
        held.exp_avg_code[chunk.moments], held.exp_avg_scale[chunk.scales], True
    )
    second = blockwise.decode(
        held.exp_avg_sq_code[chunk.moments], held.exp_avg_sq_scale[chunk.scales], False
    )
    return first, second


def _store_moments(
    state: PartState, chunk: _Chunk, first: Tensor, second: Tensor
) -> None:
    """Encode the moments of an 8-bit chunk; fp32 ones were changed in place."""
    if not chunk.spot.is_eight_bit:
        return
    held = state.moments
    codes, scale = blockwise.encode(first, True)
    held.exp_avg_code[chunk.moments] = codes
    held.exp_avg_scale[chunk.scales] = scale
    codes, scale = blockwise.encode(second, False)
    held.exp_avg_sq_code[chunk.moments] = codes
    held.exp_avg_sq_scale[chunk.scales] = scale


def _load_master(state: PartState, part: slice) -> Tensor:
    """Return the chunk's master weights in fp32: a view only for fp32 weights."""
    weight = state.weight[part]
    if state.remainder is not None:
        return masters.join_master(weight, state.remainder[part])
    return weight.float()


def _store_master(state: PartState, part: slice, master: Tensor, key: int) -> None:
    """Write the chunk's weights back in the state's master format."""
    weight = state.weight[part]
    if state.master == "fp32-split" and state.remainder is not None:
        high, low = masters.split_master(master)
        weight.copy_(high)
        state.remainder[part] = low
    elif state.master == "bf16-stochastic":
        random = masters.random_bits(part.start, master.numel(), key, master.device)
        weight.copy_(masters.round_stochastic(master, random))
    elif weight.data_ptr() != master.data_ptr():
        weight.copy_(master)


def _adamw(
    master: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    keep: float,
    constants: StepConstants,
) -> None:
    """Update fp32 weights and moments in place (decoupled weight decay)."""
    first, second = moments
    if keep != 1:
        master.mul_(keep)
    first.lerp_(gradient, 1 - constants.beta1)
    second.mul_(constants.beta2)
    second.addcmul_(gradient, gradient, value=1 - constants.beta2)
    root = second.sqrt().div_(constants.root_bias_correction2).add_(constants.eps)
    master.addcdiv_(first, root, value=-constants.step_size)


def _update_chunk(
    state: PartState, gradient: Tensor, chunk: _Chunk, constants: StepConstants
) -> None:
    """Update one chunk of one slice."""
    piece = gradient[chunk.weights].float()
    if constants.scale != 1:
        piece = piece * constants.scale
    master = _load_master(state, chunk.weights)
    moments = _load_moments(state, chunk)
    _adamw(master, piece, moments, constants.keep(chunk.piece.weight_decay), constants)
    _store_moments(state, chunk, *moments)
    key = masters.rounding_key(constants.step, state.salt)
    _store_master(state, chunk.weights, master, key)


@torch.no_grad()
def update(state: PartState, gradient: Tensor, constants: StepConstants) -> None:
    """Update a part's weights and moments from a flat gradient of the same layout."""
    for piece, spot in state.placed():
        for start in range(0, piece.numel, CHUNK):
            chunk = _Chunk(piece, spot, start, min(CHUNK, piece.numel - start))
            _update_chunk(state, gradient, chunk, constants)
