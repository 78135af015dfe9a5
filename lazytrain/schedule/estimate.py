"""What a machine could do with a model: memory, step time, largest batch, and why.

Nothing is run: shapes come from ``config.json``, rates from the command line, and the
plan from the same derivation and program as a real run's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from lazytrain.errors import InvalidInput, LazyTrainError, NoSchedule
from lazytrain.records import Contract
from lazytrain.schedule.assumed import (
    Job,
    Machine,
    config_of,
    hardware_of,
    layers_of,
    row_of,
)
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import reserve_bytes
from lazytrain.schedule.heuristics import barest
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.memory import device_bytes, host_bytes
from lazytrain.schedule.parts import model_sizes
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.shapes import ModelShape
from lazytrain.schedule.solve import Limits, solve
from lazytrain.units import format_bytes

LARGEST = 2**20


class Estimate(Contract):
    """The answer, with every sum laid open."""

    model: str
    num_parameters: int
    batch: int
    seq_len: int
    fits: bool
    limit: str = Field(description="what stops a larger batch, or this one")
    gpu_bytes: dict[str, int]
    cpu_bytes: dict[str, int]
    counts: dict[str, int] = Field(default_factory=dict)
    step_s: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None
    exposed_s: dict[str, float] = Field(default_factory=dict)
    peak_bytes: dict[str, int] = Field(default_factory=dict)
    solve_status: str = ""
    solve_gap: float | None = None
    largest_batch: int | None = None


def problem(shape: ModelShape, machine: Machine, job: Job) -> Instance:
    """Return the planning problem that the model, machine and job pose.

    Raises:
        InvalidInput: If the GPU cannot hold a step without any activation.
        NoSchedule: If host memory cannot hold weights and optimizer state.
    """
    instance = derive_instance(
        hardware_of(machine),
        layers_of(shape, machine, job),
        row_of(shape, job),
        config_of(job),
    )
    held = instance.fixed_bytes.cpu
    if held > machine.cpu_memory_bytes:
        raise NoSchedule(
            f"CPU memory {format_bytes(machine.cpu_memory_bytes)} is below the "
            f"{format_bytes(held)} of weights, gradients and optimizer state"
        )
    return instance


def estimate(
    shape: ModelShape, machine: Machine, job: Job, limits: Limits | None = None
) -> Estimate:
    """Return memory, predicted step, largest batch and what limits it."""
    largest, limit = fit(shape, machine, job, "batch")
    base = {
        "model": shape.name,
        "num_parameters": shape.num_parameters,
        "batch": job.batch,
        "seq_len": job.seq_len,
        "largest_batch": largest,
        "limit": limit,
        **_memory(shape, machine, job),
    }
    try:
        instance = problem(shape, machine, job)
        plan = solve(instance, limits)
    except LazyTrainError as error:
        return Estimate.model_validate(
            base | {"fits": False, "limit": f"this batch does not fit: {error}"}
        )
    return Estimate.model_validate(base | _predicted(plan, shape, job))


def _predicted(plan: Plan, shape: ModelShape, job: Job) -> dict[str, object]:
    """Return the plan's predicted figures."""
    seen = plan.prediction
    assert seen is not None
    tokens = job.batch * job.seq_len
    return {
        "fits": True,
        "counts": {home: plan.homes.count(home) for home in dict.fromkeys(plan.homes)},
        "step_s": seen.step_s,
        "tokens_per_s": tokens / seen.step_s,
        "tflops": 6 * shape.num_parameters * tokens / seen.step_s / 1e12,
        "exposed_s": seen.exposed_s,
        "peak_bytes": seen.peak_bytes,
        "solve_status": plan.solve.status,
        "solve_gap": plan.solve.gap,
    }


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
    return _largest(trial, smallest)


def _largest(trial: Callable[[int], str], smallest: int) -> tuple[int | None, str]:
    """Search the largest value without an obstacle: doubling, then halving."""
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
    """Return why no schedule fits, or nothing if one does.

    Tries the schedules that need the least of some tier; no solver is needed.
    """
    try:
        instance = problem(shape, machine, job)
    except (InvalidInput, NoSchedule) as error:
        return str(error)
    try:
        barest(instance)
    except NoSchedule as error:
        return str(error)
    return ""


def _memory(shape: ModelShape, machine: Machine, job: Job) -> dict[str, object]:
    """Return fixed bytes by cause, budget or not."""
    roomy = Machine(**vars(machine) | {"gpu_memory_bytes": 2**60})
    profile = layers_of(shape, roomy, job)
    instance = derive_instance(
        hardware_of(roomy), profile, row_of(shape, job), config_of(job)
    )
    run = instance.execution
    assert run is not None
    run = run.model_copy(update={"reserve_bytes": reserve_bytes(hardware_of(machine))})
    offloads = instance.budget_bytes.cpu >= instance.boundary_bytes[0]
    sizes = model_sizes(profile, run)
    bounced = instance.boundary_bytes[0] if machine.nvme_bytes else 0
    return {
        "gpu_bytes": vars(device_bytes(instance.parts, run, sizes, offloads))
        | {"one_boundary": instance.boundary_bytes[0]},
        "cpu_bytes": vars(host_bytes(instance.parts, run, bounced)),
    }
