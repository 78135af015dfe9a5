"""The largest batch or sequence that memory holds, and what stops a larger one.

No solver is needed: the schedules that need the least of some tier say what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.assumed import (
    Job,
    Machine,
    Order,
    config_of,
    hardware_of,
    layers_of,
    row_of,
)
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import micro_batch
from lazytrain.schedule.heuristics import barest
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.shapes import ModelShape
from lazytrain.units import format_bytes

LARGEST = 2**20
ORDERS: Final[tuple[Order, ...]] = ("layer-major", "batch-major")


def fit(
    shape: ModelShape, machine: Machine, job: Job, search: Literal["batch", "seq_len"]
) -> tuple[int | None, str]:
    """Return the largest batch or sequence that any schedule fits, and what stops it.

    None means that not even the smallest fits.
    """

    def trial(value: int) -> str:
        changed: dict[str, Any] = {search: value}
        return obstacle(shape, machine, replace(job, **changed))

    smallest = 1 if search == "batch" else 2
    return largest_without(trial, smallest)


def largest_without(
    trial: Callable[[int], str], smallest: int
) -> tuple[int | None, str]:
    """Search the largest value without an obstacle: doubling, then halving.

    Args:
        trial: Returns why a value is too large, or nothing.
        smallest: Where to begin.

    Returns:
        The value and what stops the next one; None if the smallest is too large.
    """
    reason = trial(smallest)
    if reason:
        return None, reason
    good, bad = smallest, smallest * 2
    while bad <= LARGEST and not (reason := trial(bad)):
        good, bad = bad, bad * 2
    if bad > LARGEST:
        return good, "nothing up to the search's end"
    while bad - good > 1:
        middle = (good + bad) // 2
        found = trial(middle)
        if found:
            bad, reason = middle, found
        else:
            good = middle
    return good, reason


def obstacle(shape: ModelShape, machine: Machine, job: Job) -> str:
    """Return why no schedule fits in the job's order, or nothing if one does.

    Tries the schedules that need the least of some tier; no solver is needed.
    """
    if job.order != "auto":
        return _obstacle(shape, machine, job)
    reasons = []
    for order in ORDERS:
        reason = _obstacle(shape, machine, replace(job, order=order))
        if not reason:
            return ""
        reasons.append(f"{order}: {reason}")
    return "; ".join(reasons)


def _obstacle(shape: ModelShape, machine: Machine, job: Job) -> str:
    """Return why no schedule fits in one order, with the largest waves that do."""
    reason = ""
    for tokens in _wave_tokens(job):
        trial = replace(job, micro_batch_tokens=tokens)
        reason = reason_against(
            hardware_of(machine),
            layers_of(shape, machine, trial),
            row_of(shape, trial),
            config_of(trial),
            machine.cpu_memory_bytes,
        )
        if not reason:
            return ""
    return reason


def reason_against(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
    host_bytes: int,
) -> str:
    """Return why not even the schedule that keeps least fits a run, or nothing.

    Args:
        hardware: The machine, measured or assumed.
        layers: The model's layers, likewise.
        row: The run.
        config: Its settings.
        host_bytes: Host memory that it may take in all.
    """
    try:
        instance = derive_instance(hardware, layers, row, config)
        refuse_small_host(instance, host_bytes)
        barest(instance)
    except (InvalidInput, NoSchedule) as error:
        return str(error)
    return ""


def _wave_tokens(job: Job) -> Iterator[int]:
    """Yield the tokens of a micro-batch that may be tried, largest first."""
    if job.order != "batch-major":
        yield job.micro_batch_tokens
        return
    largest = micro_batch(job.batch, job.seq_len, job.micro_batch_tokens)
    for rows in range(largest, 0, -1):
        if job.batch % rows == 0:
            yield rows * job.seq_len


def refuse_small_host(instance: Instance, host_bytes: int) -> None:
    """Raise if host memory cannot hold what no schedule changes."""
    held = instance.fixed_bytes.cpu
    if held > host_bytes:
        raise NoSchedule(
            f"CPU memory {format_bytes(host_bytes)} is below the "
            f"{format_bytes(held)} of weights, gradients and optimizer state"
        )
