"""The reference's 8-bit AdamW as one compiled graph, for state that lives on a GPU.

The arithmetic and the rounding rules are those of ``reference``, ``blockwise`` and
``masters``, written over ``[blocks, 4096]`` so that one graph with a free number of
blocks serves every tensor. Nothing is read back from the device, and what changes from
step to step comes in as tensors, so no step waits and none compiles again.

Additions and products may be fused, so values agree with the reference to the last fp32
bit or two, not exactly.
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
from lazytrain.optim.blockwise import SMALLEST_SCALE, codebook, dynamic_map
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import BLOCK, Master, PartState

# fp32 temporaries of a chunk are at most 128 MiB each.
CHUNK_BLOCKS: Final = 8192
# Chunks start at multiples of it, which keeps their scales aligned to 256 bytes.
_STEP_BLOCKS: Final = 64
# Worked out before tracing, which would look through the cache.
_LINES: Final = {
    is_signed: dynamic_map(is_signed).encode for is_signed in (True, False)
}


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


def _line(slope: Tensor, x: Tensor, offset: float) -> Tensor:
    """Return ``slope * x + offset`` rounded once to fp32."""
    return (slope.double() * x.double() + offset).float()


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
    short = (scale > 0) & (_line(slope * inverse, scale, offset) < top)
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
    numbers = u.to(torch.int32)
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


def _arithmetic(
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
            _arithmetic, fullgraph=True, dynamic=False, backend=backend
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
