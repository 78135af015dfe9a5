"""Global-norm clipping that touches the gradient once (paper, Section 3.5).

Square-sums come per tensor, from the GPU as layers finish or from the host, and are
added in fp64 in the order given; the factor is applied inside the update. The result
equals ``torch.nn.utils.clip_grad_norm_`` followed by AdamW.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.optim import native
from lazytrain.optim.state import TensorSlice

# The constant that torch.nn.utils.clip_grad_norm_ adds to the norm.
_GUARD: Final = 1e-6
_CHUNK: Final = 2**20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClipResult:
    """Global L2 norm and the factor to apply; 0 when the norm is not finite."""

    norm: float
    factor: float
    is_finite: bool


def clip_factor(square_sums: Iterable[float], max_norm: float) -> ClipResult:
    """Add square-sums in their order in fp64 and derive the clip factor.

    Raises:
        InvalidInput: If ``max_norm`` is not above zero.
    """
    if not max_norm > 0:
        raise InvalidInput("max_grad_norm", max_norm, "must be above zero")
    total = 0.0
    for value in square_sums:
        total += float(value)
    if not math.isfinite(total) or total < 0:
        return ClipResult(math.sqrt(total) if total > 0 else math.nan, 0.0, False)
    norm = math.sqrt(total)
    return ClipResult(norm, min(1.0, max_norm / (norm + _GUARD)), True)


def square_sums(
    gradient: Tensor, slices: Sequence[TensorSlice], threads: int = 0
) -> Tensor:
    """Return one fp32 sum of squares per slice of a flat gradient.

    bf16 and fp32 gradients on the host take the native kernel (fp64 accumulation, the
    same bits for any number of threads); everything else is summed chunk by chunk.

    Raises:
        InvalidInput: If a slice leaves the gradient.
    """
    for piece in slices:
        if piece.offset < 0 or piece.offset + piece.numel > gradient.numel():
            raise InvalidInput(piece.name, piece.offset, "lies outside the gradient")
    library = native.library() if native.takes(gradient) else None
    if library is not None:
        return library.square_sums(gradient, slices, threads)
    return torch.stack([_square_sum(gradient, piece) for piece in slices] or [_zero()])[
        : len(slices)
    ].float()


def _zero() -> Tensor:
    """Return an fp64 zero."""
    return torch.zeros((), dtype=torch.float64)


def _square_sum(gradient: Tensor, piece: TensorSlice) -> Tensor:
    """Return a slice's sum of squares in fp64, one chunk at a time."""
    flat = gradient[piece.offset : piece.offset + piece.numel]
    total = torch.zeros((), dtype=torch.float64, device=gradient.device)
    for start in range(0, piece.numel, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        total += chunk.double().square().sum()
    return total


@dataclass
class SkipCounter:
    """Counts the steps that a non-finite norm has stopped, and logs each."""

    skipped: int = 0

    def admit(self, result: ClipResult, step: int) -> bool:
        """Return whether the step may write; count and log it if not."""
        if result.is_finite:
            return True
        self.skipped += 1
        _log.warning(
            "step %d skipped: gradient norm is %s (%d skipped so far)",
            step,
            result.norm,
            self.skipped,
        )
        return False
