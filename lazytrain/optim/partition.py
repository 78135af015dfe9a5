"""Which tensors get 8-bit state: a deterministic choice (paper, Section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim.state import BLOCK, TensorSlice


def fraction_of(settings: OptimizerSettings) -> float:
    """Return the share of parameters with 8-bit state that the optimizer type asks."""
    if settings.type == "cpu_adamw_8bit":
        return 1.0
    if settings.type == "hybrid_adamw_8bit":
        return settings.eight_bit_fraction
    return 0.0


def eight_bit_slices(
    parts: Mapping[str, Sequence[TensorSlice]], fraction: float
) -> dict[str, list[bool]]:
    """Choose whole tensors for 8-bit state, up to a fraction of all parameters.

    The largest tensors that still fit are taken first; equals go by part and name,
    so the choice depends on names and sizes alone. Below a fraction of one, tensors
    smaller than a block keep fp32 state: they would save nothing. If no tensor fits,
    the smallest eligible one is taken, so that a tiny model has an 8-bit share too.

    Raises:
        InvalidInput: If the fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise InvalidInput("eight_bit_fraction", fraction, "choose from 0 to 1")
    if fraction in (0, 1):
        return {part: [fraction == 1] * len(pieces) for part, pieces in parts.items()}
    chosen = _choose(parts, fraction)
    return {
        part: [(part, index) in chosen for index in range(len(pieces))]
        for part, pieces in parts.items()
    }


def _choose(
    parts: Mapping[str, Sequence[TensorSlice]], fraction: float
) -> set[tuple[str, int]]:
    """Return (part, index) of the chosen slices for a fraction inside (0, 1)."""
    candidates = sorted(
        (-piece.numel, part, piece.name, index)
        for part, pieces in parts.items()
        for index, piece in enumerate(pieces)
        if piece.numel >= BLOCK
    )
    room = fraction * sum(piece.numel for pieces in parts.values() for piece in pieces)
    chosen: set[tuple[str, int]] = set()
    for negative, part, _, index in candidates:
        if -negative <= room:
            chosen.add((part, index))
            room += negative
    if candidates and not chosen:
        chosen.add((candidates[-1][1], candidates[-1][3]))
    return chosen


def eight_bit_share(
    parts: Mapping[str, Sequence[TensorSlice]], chosen: Mapping[str, Sequence[bool]]
) -> float:
    """Return the share of parameters that a choice gives 8-bit state."""
    pairs = [
        (piece.numel, flag)
        for part, pieces in parts.items()
        for piece, flag in zip(pieces, chosen[part], strict=True)
    ]
    total = sum(numel for numel, _ in pairs)
    return sum(numel for numel, flag in pairs if flag) / total if total else 0.0
