"""The reference's 8-bit AdamW as one compiled graph, for state that lives on a GPU.

One graph with a free number of blocks serves every tensor. Nothing is read back from
the device, and what changes from step to step comes in as tensors, so no step waits and
none compiles again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim import masters
from lazytrain.optim.blockwise import codebook
from lazytrain.optim.compiled_step import update_blocks
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import BLOCK, Master, PartState

# fp32 temporaries of a chunk are at most 128 MiB each.
CHUNK_BLOCKS: Final = 8192
# Chunks start at multiples of it, which keeps their scales aligned to 256 bytes.
_STEP_BLOCKS: Final = 64


@dataclass(frozen=True)
class _Chunk:
    """Views of one chunk: weight and remainder, moments, and its first element."""

    start: int
    stop: int
    weight: Tensor
    remainder: Tensor | None
    codes: tuple[Tensor, Tensor]
    scales: tuple[Tensor, Tensor]
    first: Tensor


class CompiledAdamW:
    """Steps 8-bit parts of whole blocks with one compiled graph.

    Args:
        settings: Hyper-parameters.
        states: Parts of one slice each, at offset 0, of a multiple of 4096 elements and
            at least two blocks, with 8-bit moments. They are updated in place.
        backend: Compiler of the graph, as ``torch.compile`` takes it.

    Raises:
        InvalidInput: If a part is not of that form.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        states: Sequence[PartState],
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self._settings = settings
        self._states = list(states)
        for state in states:
            _check(state)
        device = states[0].weight.device
        self._tables = (codebook(True).to(device), codebook(False).to(device))
        self._chunks = [list(_chunks(state)) for state in states]
        self._run = torch.compile(
            update_blocks, fullgraph=True, dynamic=False, backend=backend
        )

    @torch.no_grad()
    def update(
        self,
        gradients: Sequence[Tensor],
        *,
        step: int,
        learning_rate: float,
        scale: float,
    ) -> None:
        """Apply one step to every part; ``gradients`` are flat, one for each part.

        Raises:
            InvalidInput: If a number is not finite or a step below 1.
        """
        constants = StepConstants.make(self._settings, step, learning_rate, scale)
        device = self._states[0].weight.device
        keys = torch.tensor(
            [masters.rounding_key(step, state.salt) for state in self._states]
        ).to(device)
        numbers: dict[float, Tensor] = {}
        for state, chunks, key, gradient in zip(
            self._states, self._chunks, keys.unbind(), gradients, strict=True
        ):
            decay = state.slices[0].weight_decay
            if decay not in numbers:
                numbers[decay] = _numbers(constants, decay, device)
            for chunk in chunks:
                self._update_chunk(state.master, chunk, gradient, numbers[decay], key)

    def _update_chunk(
        self, master: Master, chunk: _Chunk, gradient: Tensor, *rest: Tensor
    ) -> None:
        """Run the graph on one chunk; ``rest`` is the step's numbers and its key."""
        numbers, key = rest
        piece = _rows(gradient, slice(chunk.start, chunk.stop))
        self._run(
            master,
            chunk.weight,
            chunk.remainder,
            piece,
            chunk.codes,
            chunk.scales,
            self._tables,
            numbers,
            (chunk.first, key),
        )


def _numbers(
    constants: StepConstants, weight_decay: float, device: torch.device
) -> Tensor:
    """Return a step's numbers as the graph reads them."""
    return torch.tensor(
        [
            constants.scale,
            constants.keep(weight_decay),
            1 - constants.beta1,
            constants.beta2,
            1 - constants.beta2,
            constants.root_bias_correction2,
            constants.eps,
            constants.step_size,
        ],
        dtype=torch.float32,
    ).to(device)


def _check(state: PartState) -> None:
    """Refuse a part that is not one slice of whole blocks with 8-bit moments."""
    numel = state.weight.numel()
    is_whole = len(state.slices) == 1 and state.slices[0].numel == numel
    if not is_whole or numel % BLOCK or numel < 2 * BLOCK:
        remedy = f"pass one slice of at least two whole blocks of {BLOCK}"
        raise InvalidInput("state", numel, remedy)
    if not state.placements[0].is_eight_bit:
        raise InvalidInput("state", "fp32", "pass a part with 8-bit moments")


def _bounds(blocks: int) -> Iterator[tuple[int, int]]:
    """Yield about equal ranges of blocks, none of a single one: another graph."""
    count = -(-blocks // CHUNK_BLOCKS)
    size = -(-blocks // (count * _STEP_BLOCKS)) * _STEP_BLOCKS
    begin = 0
    while begin < blocks:
        end = begin + size if blocks - begin > size + 1 else blocks
        yield begin, end
        begin = end


def _chunks(state: PartState) -> Iterator[_Chunk]:
    """Yield a part's chunks; their views mark the number of blocks as dynamic."""
    held = state.moments
    bits = torch.float32 if state.master == "fp32" else torch.int16
    for begin, end in _bounds(state.weight.numel() // BLOCK):
        span = slice(begin * BLOCK, end * BLOCK)
        rest = state.remainder
        yield _Chunk(
            span.start,
            span.stop,
            _rows(state.weight.view(bits), span),
            None if rest is None else _rows(rest, span),
            (_rows(held.exp_avg_code, span), _rows(held.exp_avg_sq_code, span)),
            (
                _dynamic(held.exp_avg_scale[begin:end]),
                _dynamic(held.exp_avg_sq_scale[begin:end]),
            ),
            torch.tensor(span.start, device=state.weight.device),
        )


def _rows(tensor: Tensor, span: slice) -> Tensor:
    """Return elements of a flat tensor as ``[blocks, 4096]``."""
    return _dynamic(tensor[span].view(-1, BLOCK))


def _dynamic(tensor: Tensor) -> Tensor:
    """Mark a view's number of blocks as one that changes from call to call."""
    torch._dynamo.mark_dynamic(tensor, 0)
    return tensor
