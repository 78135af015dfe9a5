"""Optimizer state on NVMe as the planner sees it: which parts, how much, how long.

What a host cannot hold is streamed in and out around each update (as ZeRO-Infinity does
it). That traffic comes first: boundaries get what it leaves of the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lazytrain.errors import InvalidInput
from lazytrain.schedule.instance import Bandwidth, Execution, PartSpec
from lazytrain.schedule.memory import host_bytes, streamed_bytes_per_parameter
from lazytrain.schedule.plan import Part, Plan
from lazytrain.schedule.staging import UNIT_PARAMETERS
from lazytrain.units import MIB, format_bytes

StateHome = Literal["cpu", "nvme", "auto"]


def with_state_home(
    run: Execution, parts: Sequence[PartSpec], wanted: StateHome, room_bytes: int
) -> Execution:
    """Return the run with the parts named whose state goes to NVMe.

    ``auto`` moves no more than the host cannot hold, beginning with the part that is
    updated last: its update is the furthest from gating the next forward.

    Args:
        run: How the step is run.
        parts: The model's parts, in update order.
        wanted: The setting.
        room_bytes: Host memory that a plan may use.
    """
    chosen: list[str] = []
    if wanted == "nvme":
        chosen = [part.name for part in parts]
    for part in reversed(parts if wanted == "auto" else ()):
        trial = run.model_copy(update={"state_on_nvme": tuple(chosen)})
        if host_bytes(parts, trial).total <= room_bytes:
            break
        chosen.insert(0, part.name)
    return run.model_copy(update={"state_on_nvme": tuple(chosen)})


def disk_bytes(run: Execution, parts: Sequence[PartSpec], free_bytes: int) -> int:
    """Return the bytes of state on NVMe.

    Raises:
        InvalidInput: If the disk cannot hold them.
    """
    moved = [p.num_parameters for p in parts if p.name in run.state_on_nvme]
    needed = int(sum(moved) * streamed_bytes_per_parameter(run))
    if needed > free_bytes:
        remedy = (
            f"{format_bytes(needed)} of state do not fit into the "
            f"{format_bytes(free_bytes)} that the disk can give: use 8-bit state, "
            "another scratch folder, or state_home: cpu"
        )
        raise InvalidInput("optimizer.state_home", "nvme", remedy)
    return needed


def left_for_boundaries(
    rates: Bandwidth, state_bytes: int, forward_s: float, backward_s: float
) -> Bandwidth:
    """Return the disk rates that boundaries have beside the state.

    Reading and writing share the disk. The state takes it from the start of the
    forward, when updates begin, and what does not fit there goes on in the backward.
    """
    busy = state_bytes / rates.nvme_read + state_bytes / rates.nvme_write
    in_forward = min(1.0, busy / forward_s)
    in_backward = min(1.0, max(0.0, busy - forward_s) / backward_s)
    return rates.model_copy(
        update={
            "nvme_write": max(1.0, rates.nvme_write * (1 - in_forward)),
            "nvme_read": max(1.0, rates.nvme_read * (1 - in_backward)),
        }
    )


def reserved_bytes(plan: Plan) -> int:
    """Return the disk space to reserve for a plan's state."""
    moved = [part for part in plan.parts if part.optimizer_state.home == "nvme"]
    return sum(map(part_bytes, moved))


def part_bytes(part: Part) -> int:
    """Return the disk space of a part's state; an upper bound.

    Every tensor is rounded up to blocks and every part padded, and a hybrid's share of
    8-bit state differs from part to part.
    """
    state = part.optimizer_state
    moments = 2.01 if state.format == "8bit" else 8.0
    remainder = 2 if state.master == "fp32-split" else 0
    units = part.num_parameters // UNIT_PARAMETERS + 1
    return int(part.num_parameters * (moments + remainder)) + 2 * units * MIB
