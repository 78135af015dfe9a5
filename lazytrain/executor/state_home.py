"""Optimizer state that lives on NVMe and passes through host memory unit by unit.

A part's state is cut into units of whole 8-bit blocks, so the largest part does not say
how much host memory the staging takes. Updates of units are updates of the part: every
element, and every block, sees what it would have seen with its state in host memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.pages import zeros
from lazytrain.optim.state import (
    BLOCK,
    Moments,
    PartState,
    Placement,
    TensorSlice,
    new_moments,
    num_blocks,
    place,
    salt_of,
)
from lazytrain.schedule.staging import STATE_SLOTS, UNIT_PARAMETERS
from lazytrain.tiers.deferred import DeferredTensor
from lazytrain.tiers.state_stream import StateStream
from lazytrain.tiers.tier import Tier

_CPU, _META = torch.device("cpu"), torch.device("meta")
REMAINDER = "remainder"


@dataclass(frozen=True)
class Run:
    """A run of whole blocks of one tensor of a part: elements ``start`` to ``end``."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True)
class Unit:
    """A stretch of a part, from element ``start`` to ``end`` of its flat buffer.

    ``slices`` are the runs with their places in the part; ``placements`` say where the
    moments of each lie inside the unit's own tensors.
    """

    name: str
    start: int
    end: int
    runs: tuple[Run, ...]
    slices: tuple[TensorSlice, ...]
    placements: tuple[Placement, ...]

    def blank(
        self, *, has_remainder: bool, device: torch.device = _META
    ) -> dict[str, Tensor]:
        """Return the unit's state as zeros; without a device, its shapes only."""
        named = dict(vars(new_moments(self.slices, self.placements, device)))
        if has_remainder:
            named[REMAINDER] = zeros(self.end - self.start, torch.int16, device)
        return named


def cut(
    part: str, slices: Sequence[TensorSlice], eight_bit: Sequence[bool], most: int
) -> list[Unit]:
    """Cut a part into units of at most ``most`` elements, rounded to whole blocks."""
    units: list[Unit] = []
    runs: list[Run] = []
    room = most = max(most // BLOCK, 1) * BLOCK
    for tensor, piece in enumerate(slices):
        start = 0
        while start < piece.numel:
            count = min(room, piece.numel - start)
            runs.append(Run(tensor, start, start + count))
            start += count
            room -= -(-count // BLOCK) * BLOCK
            if room <= 0:
                units.append(_unit(f"{part}.{len(units)}", runs, slices, eight_bit))
                runs, room = [], most
    if runs:
        units.append(_unit(f"{part}.{len(units)}", runs, slices, eight_bit))
    return units


def _unit(
    name: str,
    runs: Sequence[Run],
    slices: Sequence[TensorSlice],
    eight_bit: Sequence[bool],
) -> Unit:
    """Return the unit that consists of some runs."""
    pieces = [
        TensorSlice(
            slices[run.tensor].name,
            slices[run.tensor].offset + run.start,
            run.end - run.start,
            slices[run.tensor].weight_decay,
        )
        for run in runs
    ]
    spots = place(pieces, [eight_bit[run.tensor] for run in runs])
    end = pieces[-1].offset + pieces[-1].numel
    return Unit(name, pieces[0].offset, end, tuple(runs), tuple(pieces), spots)


class StreamedState:
    """State of the parts whose plan says ``optimizer_state.home = nvme``.

    Args:
        adamw: Updates units.
        tier: Where the state lives.
        weights: Flat host weights of these parts, in update order.
        slices: Tensors of each part.
        eight_bit: Which of them have 8-bit state.
        unit_parameters: Most elements of a unit.
        poison: Fill staging pages with NaN before they are used again (tests).
    """

    def __init__(
        self,
        adamw: HostAdamW,
        tier: Tier,
        weights: Mapping[str, Tensor],
        slices: Mapping[str, Sequence[TensorSlice]],
        eight_bit: Mapping[str, Sequence[bool]],
        *,
        unit_parameters: int = UNIT_PARAMETERS,
        poison: bool = False,
    ) -> None:
        self._adamw = adamw
        self._weights = weights
        self._slices = {part: tuple(slices[part]) for part in weights}
        self._placements = {
            part: place(slices[part], eight_bit[part]) for part in weights
        }
        self._units = {
            part: cut(part, slices[part], eight_bit[part], unit_parameters)
            for part in weights
        }
        self._has_remainder = adamw.master == "fp32-split"
        self._stream = StateStream(tier, num_slots=STATE_SLOTS, poison=poison)
        for units in self._units.values():
            for unit in units:
                blank = unit.blank(has_remainder=self._has_remainder)
                self._stream.declare(unit.name, blank)

    @property
    def host_bytes(self) -> int:
        """Host memory of the staging pages."""
        return self._stream.host_bytes

    @property
    def tier_bytes(self) -> int:
        """Bytes of state on the tier."""
        return self._stream.tier_bytes

    def prepare(self) -> None:
        """Start reading what the next update needs first."""
        self._stream.read_ahead()

    def settle(self) -> None:
        """Wait for all writes; raises what went wrong with them."""
        self._stream.settle()

    def update(
        self,
        part: str,
        gradient: Tensor,
        *,
        step: int,
        learning_rate: float,
        scale: float,
    ) -> None:
        """Apply one AdamW step to a part, unit by unit."""
        for unit in self._units[part]:
            with self._stream.using(unit.name) as tensors:
                state, piece = self._state_of(part, unit, tensors, gradient)
                self._adamw.update(
                    state, piece, step=step, learning_rate=learning_rate, scale=scale
                )

    def _state_of(
        self, part: str, unit: Unit, tensors: Mapping[str, Tensor], gradient: Tensor
    ) -> tuple[PartState, Tensor]:
        """Return a unit's state and gradient.

        A remainder lies like the weights beside it, so both begin with the unit.
        Without one the whole part is passed: stochastic rounding draws its bits by an
        element's place in the part.
        """
        named = dict(tensors)
        remainder = named.pop(REMAINDER, None)
        first, end = (unit.start, unit.end) if self._has_remainder else (0, None)
        slices = tuple(
            TensorSlice(s.name, s.offset - first, s.numel, s.weight_decay)
            for s in unit.slices
        )
        state = PartState(
            slices=slices,
            placements=unit.placements,
            master=self._adamw.master,
            weight=self._weights[part][first:end],
            remainder=remainder,
            moments=Moments(**named),
            salt=salt_of(self._slices[part]),
        )
        return state, gradient[first:end]

    def tensors(self) -> dict[str, DeferredTensor]:
        """Return every state tensor as ``part/name``, as if the state were in DRAM."""
        return {
            f"{part}/{name}": DeferredTensor(
                blank.dtype, blank.shape, partial(self._load, part, name)
            )
            for part in self._units
            for name, blank in self._blank(part, _META).items()
        }

    def load(self, part: str, name: str, tensor: Tensor) -> None:
        """Replace one state tensor of a part by a saved one."""
        for unit in self._units[part]:
            mine = unit.blank(has_remainder=self._has_remainder, device=_CPU)[name]
            for theirs, ours in self._matches(part, unit, name):
                mine[ours] = tensor[theirs]
            self._stream.store(unit.name, name, mine)

    def _load(self, part: str, name: str) -> Tensor:
        """Read one state tensor of a part."""
        whole = self._blank(part, _CPU)[name]
        for unit in self._units[part]:
            found = self._stream.load(unit.name, name)
            for theirs, ours in self._matches(part, unit, name):
                whole[theirs] = found[ours]
        return whole

    def _blank(self, part: str, device: torch.device) -> dict[str, Tensor]:
        """Return a part's state as zeros."""
        slices = self._slices[part]
        named = dict(vars(new_moments(slices, self._placements[part], device)))
        if self._has_remainder:
            count = self._weights[part].numel()
            named[REMAINDER] = zeros(count, torch.int16, device)
        return named

    def _matches(
        self, part: str, unit: Unit, name: str
    ) -> Iterator[tuple[slice, slice]]:
        """Yield where the unit's share of a tensor lies in the part and in the unit."""
        if name == REMAINDER:
            yield slice(unit.start, unit.end), slice(0, unit.end - unit.start)
            return
        for run, spot in zip(unit.runs, unit.placements, strict=True):
            whole = self._placements[part][run.tensor]
            count = run.end - run.start
            if name.endswith("_scale"):
                theirs = whole.scale_offset + run.start // BLOCK
                ours, count = spot.scale_offset, num_blocks(count)
            else:
                theirs, ours = whole.state_offset + run.start, spot.state_offset
            if spot.is_eight_bit == ("code" in name or "scale" in name):
                yield slice(theirs, theirs + count), slice(ours, ours + count)
