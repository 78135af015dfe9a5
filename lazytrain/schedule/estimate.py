"""What a machine could do with a model: memory, step time, largest batch, and why.

Nothing is run: shapes come from ``config.json``, rates from the command line, and the
plan from the same derivation and program as a real run's.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import Contract
from lazytrain.schedule.assumed import (
    Job,
    Machine,
    config_of,
    hardware_of,
    layers_of,
    row_of,
)
from lazytrain.schedule.budgets import held_bytes
from lazytrain.schedule.derive import placed
from lazytrain.schedule.execution import settings_of
from lazytrain.schedule.fit import ORDERS, fit, obstacle, refuse_small_host
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.memory import boundary_bytes
from lazytrain.schedule.order import Problem, problem_for
from lazytrain.schedule.parts import model_sizes, part_specs
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.shapes import ModelShape
from lazytrain.schedule.solve import Limits


class Estimate(Contract):
    """The answer, with every sum laid open."""

    model: str
    num_parameters: int
    batch: int
    seq_len: int
    fits: bool
    limit: str = Field(description="what stops a larger batch, or this one")
    order: str = Field(default="", description="of the step, and why if it was chosen")
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


def problem(
    shape: ModelShape, machine: Machine, job: Job, limits: Limits | None = None
) -> Problem:
    """Return the planning problem that the model, machine and job pose.

    Raises:
        InvalidInput: If the GPU cannot hold a step without any activation.
        NoSchedule: If host memory cannot hold weights and optimizer state, or an order
            that is to be chosen has no schedule.
    """
    found = problem_for(
        hardware_of(machine),
        layers_of(shape, machine, job),
        row_of(shape, job),
        config_of(job),
        limits or Limits(),
    )
    refuse_small_host(found.instance, machine.cpu_memory_bytes)
    return found


def estimate(
    shape: ModelShape, machine: Machine, job: Job, limits: Limits | None = None
) -> Estimate:
    """Return memory, predicted step, largest batch and what limits it.

    The memory is that of the order and the waves that the plan has.
    """
    largest, limit = fit(shape, machine, job, "batch")
    base = {
        "model": shape.name,
        "num_parameters": shape.num_parameters,
        "batch": job.batch,
        "seq_len": job.seq_len,
        "largest_batch": largest,
        "limit": limit,
    }
    try:
        asked = _in_a_fitting_order(shape, machine, job)
        found = problem(shape, machine, asked, limits)
        plan = found.solved()
    except (InvalidInput, NoSchedule) as error:
        base |= {"fits": False, "limit": f"this batch does not fit: {error}"}
        return Estimate.model_validate(base | _memory(shape, machine, job))
    base |= {"order": found.instance.chosen or asked.order}
    memory = _memory(shape, machine, _as_chosen(job, found.instance))
    return Estimate.model_validate(base | memory | _predicted(plan, shape, job))


def _in_a_fitting_order(shape: ModelShape, machine: Machine, job: Job) -> Job:
    """Return the job in the one order that fits, if it is only one.

    Raises:
        NoSchedule: If neither fits.
    """
    if job.order != "auto":
        return job
    jobs = [replace(job, order=order) for order in ORDERS]
    fitting = [other for other in jobs if not obstacle(shape, machine, other)]
    if not fitting:
        raise NoSchedule(obstacle(shape, machine, job))
    return job if len(fitting) > 1 else fitting[0]


def _as_chosen(job: Job, instance: Instance) -> Job:
    """Return the job in the order and the waves of an instance."""
    run = instance.execution
    assert run is not None
    if run.order == "layer-major":
        return replace(job, order=run.order)
    tokens = run.micro_batch * run.seq_len
    return replace(job, order=run.order, micro_batch_tokens=tokens)


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


def _memory(shape: ModelShape, machine: Machine, job: Job) -> dict[str, object]:
    """Return fixed bytes by cause, budget or not: what the planner's instance counts.

    An order that is still to be chosen counts as layer-major.
    """
    hardware, layers = hardware_of(machine), layers_of(shape, machine, job)
    row, config = row_of(shape, job), config_of(job)
    parts = part_specs(layers)
    run = placed(hardware, layers, row, config, parts)
    sizes = model_sizes(layers, run)
    held = held_bytes(hardware, settings_of(config, row), parts, run, sizes)
    return {
        "gpu_bytes": vars(held.device) | {"one_boundary": boundary_bytes(run, sizes)},
        "cpu_bytes": vars(held.host),
    }
