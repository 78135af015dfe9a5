"""The gated delta rule of linear-attention layers, by chunks of the sequence.

Each value head keeps a state ``S`` of ``[K, V]``. A token decays it, reads what it
holds for the key, and writes the difference to its own value back:

    S <- exp(d) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q

Within a chunk of C tokens the writes solve ``(I + L) X = beta (v - decayed S^T k)``
with a strictly lower triangular ``L``, so that a chunk costs a few matrix products and
only the states pass from chunk to chunk. The inverse is built from the inverses of
diagonal blocks; a power series overflows where keys repeat. States are held transposed
and q and k are never repeated over the value heads that share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK: Final = 64
BASE: Final = 16  # diagonal blocks inverted at once by masked products


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """Return a matrix's diagonal blocks, ``[..., C / size, size, size]``."""
    count = matrix.shape[-1] // size
    grid = matrix.unflatten(-1, (count, size)).unflatten(-3, (count, size))
    blocks: Tensor = grid.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    return blocks


def _below_half(size: int, half: int, like: Tensor) -> Tensor:
    """Mask of the lower left quarter of each diagonal block of ``2 * half``."""
    place = torch.arange(size, device=like.device) // half
    row, column = place[:, None], place[None, :]
    return ((row % 2 == 1) & (column == row - 1)).to(like.dtype)


def _invert(lower: Tensor) -> Tensor:
    """Return ``(I + lower)^-1``; ``[..., C, C]``, C a power of two.

    The inverse of ``[[A, 0], [B, D]]`` is ``[[A', 0], [-D' B A', D']]``, A' and D'
    being the inverses of A and D. Blocks up to ``BASE`` are merged all in one product,
    the larger ones pair by pair.
    """
    width = lower.shape[-1]
    size = min(BASE, width)
    blocks = _diagonal_blocks(lower, size)
    eye = torch.eye(size, dtype=lower.dtype, device=lower.device)
    inverse = eye - blocks * _below_half(size, 1, lower)
    half = 2
    while half < size:
        corner = blocks * _below_half(size, half, lower)
        inverse = inverse - inverse @ corner @ inverse
        half *= 2
    while size < width:
        below = _diagonal_blocks(lower, 2 * size)[..., size:, :size]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        bottom = torch.cat([-(second @ below @ first), second], dim=-1)
        inverse = torch.cat([F.pad(first, (0, size)), bottom], dim=-2)
        size *= 2
    return inverse.squeeze(-3)


class UnitLowerInverse(torch.autograd.Function):
    """``(I + lower)^-1`` whose backward is two products with the inverse itself."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Return the inverse of a unit lower triangular matrix ``[..., C, C]``."""
        inverse = _invert(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of the strictly lower triangle."""
        inverse: Tensor = ctx.saved_tensors[0]
        turned = inverse.transpose(-1, -2)
        return -(turned @ grad @ turned).tril(-1)


def _chunked(tensor: Tensor, chunk: int) -> Tensor:
    """Cut ``[b, T, h, ...]`` into ``[n, b, h, chunk, ...]``, chunks first."""
    chunks: Tensor = tensor.unflatten(1, (-1, chunk)).movedim(1, 0).transpose(2, 3)
    return chunks


def _decays(
    log_decay: Tensor, starts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return decays between tokens, from the state, to the state, of the state.

    Where documents start, decays are summed within each document alone: a running sum
    would leak a rounding error from one document into the next. What lies in another
    document is masked after differences are taken, where -inf gives no NaN.

    Args:
        log_decay: ``[n, b, h, r, C]``, at most 0.
        starts: ``[n, b, 1, 1, C]``, 1 where a document starts.

    Returns:
        ``[..., C, C]`` with zeros above the diagonal and between documents,
        ``[..., C]``, ``[..., C]`` and ``[..., 1]``.
    """
    width = log_decay.shape[-1]
    mine = torch.ones(width, width, dtype=torch.bool, device=log_decay.device).tril()
    if starts is None:
        total = log_decay.cumsum(-1)
        to_end, from_start = total[..., -1:] - total, total
    else:
        passed = starts.cumsum(-1)
        mine = mine & (passed[..., :, None] == passed[..., None, :])
        total = (log_decay[..., None, :] * mine).sum(-1)
        to_end = total[..., -1:] - total
        to_end = to_end.masked_fill(passed != passed[..., -1:], -torch.inf)
        from_start = total.masked_fill(passed != 0, -torch.inf)
    between = total[..., :, None] - total[..., None, :]
    # Above the diagonal the difference is positive: its exponential may overflow.
    between = between.masked_fill(~mine, -torch.inf).exp()
    read = from_start.exp()
    return between, read, to_end.exp(), read[..., -1:]


def _states(
    writes: Tensor, reads: Tensor, keys: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Pass the state from chunk to chunk.

    Args:
        writes: ``[n, B, V, C]`` what would be written to an empty state.
        reads: ``[n, B, C, K]`` what the state's content adds to it.
        keys: ``[n, B, C, K]`` keys, decayed to the chunk's end.
        decay: ``[n, B, 1, 1]`` of the state over the chunk.

    Returns:
        What each chunk wrote, ``[n, B, V, C]``, and the state it found,
        ``[n, B, V, K]``.
    """
    state = writes.new_zeros(writes.shape[1], writes.shape[2], keys.shape[3])
    written, states = [], []
    steps = zip(
        writes.unbind(0),
        reads.transpose(-1, -2).unbind(0),
        keys.unbind(0),
        decay.unbind(0),
        strict=True,
    )
    for write, read, key, kept in steps:
        states.append(state)
        written.append(torch.baddbmm(write, state, read))
        state = torch.baddbmm(state * kept, written[-1], key)
    return torch.stack(written), torch.stack(states)


@dataclass(frozen=True)
class _Chunks:
    """The inputs cut into chunks; ``[n, b, h, ...]``, per value head ``[n, b, h, r]``.

    Attributes:
        query: ``[n, b, h, C, K]``.
        key: ``[n, b, h, C, K]``.
        value: ``[n, b, h, r, V, C]``.
        strength: ``[n, b, h, r, 1, C]``.
        decays: As :func:`_decays` returns them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    strength: Tensor
    decays: tuple[Tensor, Tensor, Tensor, Tensor]

    def passed(self) -> tuple[Tensor, Tensor]:
        """Return what each chunk wrote and the state it found, as _states does."""
        between, read, to_end, kept = self.decays
        # Similarities are per key head; decays and strengths per value head.
        alike = (self.key @ self.key.transpose(-1, -2))[:, :, :, None]
        lower = (alike * between * self.strength.transpose(-1, -2)).tril(-1)
        inverse: Tensor = UnitLowerInverse.apply(lower)  # type: ignore[no-untyped-call]
        solve = inverse * self.strength
        writes = self.value @ solve.transpose(-1, -2)
        # One product per key head: its value heads are rows of the left factor.
        reads = (solve * -read[..., None, :]).flatten(3, 4) @ self.key
        keys = self.key[:, :, :, None] * to_end[..., None]
        return _states(
            writes.flatten(1, 3),
            reads.view_as(keys).flatten(1, 3),
            keys.flatten(1, 3),
            kept[..., None].flatten(1, 3),
        )

    def outputs(self, written: Tensor, states: Tensor) -> Tensor:
        """Return ``[n, b, h, r, V, C]``: what a query reads of state and chunk."""
        between, read, _, _ = self.decays
        found = states.view(*between.shape[:4], *states.shape[2:]).flatten(3, 4)
        old = (found @ self.query.transpose(-1, -2)).view_as(self.value)
        alike = (self.query @ self.key.transpose(-1, -2))[:, :, :, None]
        inside = (alike * between).flatten(1, 3)
        new = (written @ inside.transpose(-1, -2)).view_as(self.value)
        return old * read[..., None, :] + new


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    starts: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Return the outputs ``[b, T, Hv, V]`` of the gated delta rule.

    Everything is computed in fp32 (float64 stays float64). Value head ``i`` uses
    query and key head ``i // (Hv / Hk)``.

    Args:
        query: ``[b, T, Hk, K]``, normalised and scaled.
        key: ``[b, T, Hk, K]``, normalised.
        value: ``[b, T, Hv, V]``.
        log_decay: ``[b, T, Hv]``, at most 0.
        beta: ``[b, T, Hv]`` in 0..1, how much of the difference is written.
        starts: ``[b, T]``, 1 where a document starts: the state is emptied there.
        chunk: Tokens per chunk, a power of two.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    batch, length, heads, out_width = value.shape
    shape = (key.shape[2], heads // key.shape[2])

    def cut(tensor: Tensor) -> Tensor:
        extra = (0, 0) * (tensor.ndim - 2) + (0, -length % chunk)
        return _chunked(F.pad(tensor.to(dtype), extra), chunk)

    resets = None if starts is None else cut(starts[:, :, None])[:, :, :, None]
    chunks = _Chunks(
        cut(query),
        cut(key),
        cut(value).unflatten(2, shape).transpose(-1, -2),
        cut(beta).unflatten(2, shape)[..., None, :],
        _decays(cut(log_decay).unflatten(2, shape), resets),
    )
    output = chunks.outputs(*chunks.passed())
    # [n, b, h, r, V, C] -> [b, n, C, h, r, V]
    rows = output.permute(1, 0, 5, 2, 3, 4).reshape(batch, -1, heads, out_width)
    return rows[:, :length].to(value.dtype)
