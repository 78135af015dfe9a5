"""Memory limits of a run: refused before allocation, and recognised when hit.

Running out of memory is a result of a run, not a failure of the pipeline. Only the
expected exceptions are taken for it; everything else propagates.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lazytrain.config import Budgets, OptimizerSettings
from lazytrain.errors import OutOfMemory
from lazytrain.profile.memory import gpu_context_bytes, host_available_bytes
from lazytrain.schedule.plan import Home, Plan
from lazytrain.train.lock import DeviceBusy
from lazytrain.units import GIB, MIB, format_bytes, parse_bytes

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (GiB|MiB|KiB|bytes)")
_HOST_ALLOCATOR = "can't allocate memory"
_FACTORS = {"GiB": GIB, "MiB": MIB, "KiB": 1024, "bytes": 1}
# Host bytes per parameter that a rival allocates, by system and size of a weight:
# DeepSpeed holds bf16 and fp32 weights, fp32 gradients and two moments, and torch's
# pinned pool rounds each block up to a power of two: 7B peaked at 25.1 bytes per
# parameter, its process included.
_RIVAL_BYTES = {
    "megatrain": {2: 14, 4: 20},
    "megatrain-single-recompute": {2: 14, 4: 20},
    "megatrain-milp": {2: 14, 4: 20},
    "megatrain-hybrid8bit": {2: 14, 4: 20},
    "zero3-offload": {2: 25, 4: 20},
    "zero3-offload-liger": {2: 25, 4: 20},
}


# A context takes about half a GiB; a desktop's own use of the card some more.
CONTEXT_BYTES = 2 * GIB
ENDING_S = 30  # a process that was killed gives its device memory back by then

# Disk bytes per parameter of ZeRO-Infinity: bf16 weights, and per optimizer swap fp32
# weights, two moments, gradients and what alignment adds.
_INFINITY_DISK_BYTES = 20


FOR_PLANNED = (
    "a smaller scale, 8-bit state, NVMe boundaries or optimizer.state_home: auto"
)
FOR_RIVAL = "a smaller scale or a larger host: this rival has no smaller state"


@dataclass(frozen=True)
class Exhausted:
    """A memory limit that a run has hit."""

    status: Literal["oom", "host_oom"]
    requested_bytes: int | None
    reason: str


def asked_bytes(message: str) -> int | None:
    """Return the size in an allocator's message, in bytes."""
    match = _ASKED.search(message)
    return int(float(match[1]) * _FACTORS[match[2]]) if match else None


def recognise(error: BaseException) -> Exhausted | None:
    """Return which limit an error means, or None for any other error."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, OutOfMemory):
        status: Literal["oom", "host_oom"] = (
            "oom" if error.tier == "gpu" else "host_oom"
        )
        return Exhausted(status, error.requested_bytes, text)
    if isinstance(error, torch.OutOfMemoryError):
        return Exhausted("oom", asked_bytes(str(error)), text)
    if isinstance(error, MemoryError):
        return Exhausted("host_oom", asked_bytes(str(error)), text)
    # torch's host allocator raises a plain RuntimeError; its words are all it has.
    if isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error):
        return Exhausted("host_oom", asked_bytes(str(error)), text)
    return None


def host_limit_bytes(budgets: Budgets) -> int:
    """Return the host memory a run may take: what is free, or less if configured.

    A virtual machine may report less than it grows to; ``trust_host_capacity`` then
    lets the configured size stand.
    """
    available, configured = host_available_bytes(), configured_bytes(budgets)
    if configured is None:
        return available
    return configured if budgets.trust_host_capacity else min(available, configured)


def configured_bytes(budgets: Budgets) -> int | None:
    """Return the configured host capacity; None for whatever is free."""
    if budgets.host_capacity == "auto":
        return None
    return parse_bytes(budgets.host_capacity, "host_capacity")


def plan_host_bytes(plan: Plan, settings: OptimizerSettings) -> int:
    """Return what a plan puts into host memory: its own figure, or a count.

    The count: weights, gradients, optimizer state beside the weights, and boundaries
    whose home is the host.
    """
    if plan.prediction is not None and "cpu" in plan.prediction.peak_bytes:
        return plan.prediction.peak_bytes["cpu"]
    total = 0
    for part in plan.parts:
        item = max(1, part.weight_bytes // max(1, part.num_parameters))
        share = part.optimizer_state.eight_bit_fraction
        if part.optimizer_state.format == "fp32":
            share = 0.0
        moments = 8 * (1 - share) + 2 * share
        remainder = 2 if part.optimizer_state.master == "fp32-split" else 0
        if part.optimizer_state.home == "nvme":
            moments = remainder = 0
        held = item if part.gradient.drain == "as-consumed" else 2 * item
        total += int(part.num_parameters * (held + moments + remainder))
    return total + sum(b.size_bytes for b in plan.boundaries if b.home == Home.CPU)


def rival_host_bytes(system: str, num_parameters: int, itemsize: int) -> int:
    """Return what a rival is known to allocate on the host; 0 if unknown."""
    return _RIVAL_BYTES.get(system, {}).get(itemsize, 0) * num_parameters


def short_of_disk(system: str, num_parameters: int, free_bytes: int) -> str | None:
    """Return why a system's files do not fit on the scratch disk, or None."""
    needed = _INFINITY_DISK_BYTES * num_parameters if system == "zero-infinity" else 0
    if needed <= free_bytes:
        return None
    return (
        f"{system} puts about {format_bytes(needed)} on the scratch disk, which has "
        f"{format_bytes(free_bytes)} free: set scratch to a folder on a larger disk"
    )


def preflight(
    needed_bytes: int, budgets: Budgets, what: str, remedy: str = FOR_PLANNED
) -> None:
    """Refuse a run that the host cannot hold, before anything is allocated.

    The kernel would end the process without a word otherwise.

    Args:
        needed_bytes: What the run will take.
        budgets: What it may take.
        what: The run, for the message.
        remedy: What would make it fit.

    Raises:
        OutOfMemory: With the bytes asked for and the limit.
    """
    limit, configured = host_limit_bytes(budgets), configured_bytes(budgets)
    if needed_bytes <= limit:
        return
    given = "free memory, cgroup limit, host_capacity"
    if configured is not None and needed_bytes > configured:
        # Whatever else the machine runs at the moment: it would not fit alone either.
        limit, given = configured, "host_capacity"
    detail = (
        f"{what} needs {format_bytes(needed_bytes)} of host memory and "
        f"{format_bytes(limit)} can be had ({given}); use {remedy}"
    )
    raise OutOfMemory("host", needed_bytes, detail)


def refuse_shared_device(
    taken_bytes: Callable[[], int], pause: Callable[[float], None] = time.sleep
) -> None:
    """Refuse a device whose memory other processes hold: a row would measure them too.

    A process that is just ending is waited for.

    Args:
        taken_bytes: Returns what is taken outside this process's allocator, its own
            context included.
        pause: Waits for a number of seconds.

    Raises:
        DeviceBusy: If they still hold it after half a minute.
    """
    for _ in range(ENDING_S):
        if taken_bytes() <= CONTEXT_BYTES:
            return
        pause(1.0)
    taken = format_bytes(taken_bytes())
    raise DeviceBusy(
        f"other processes hold memory of the GPU ({taken} are taken, this process's "
        "context included), and a row would measure them too: end them (`nvidia-smi` "
        "lists them), or choose another GPU by CUDA_VISIBLE_DEVICES"
    )


def apply_gpu_cap(cap_bytes: int | None, device: torch.device) -> None:
    """Limit the allocator so that context and tensors together stay below a cap.

    Raises:
        OutOfMemory: If the context alone exceeds the cap.
    """
    if cap_bytes is None or device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    room = cap_bytes - gpu_context_bytes(device)
    if room <= 0:
        raise OutOfMemory("gpu", cap_bytes, "the cap is below the CUDA context")
    cuda: Any = torch.cuda
    cuda.set_per_process_memory_fraction(min(1.0, room / total), device)
