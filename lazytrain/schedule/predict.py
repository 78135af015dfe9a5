"""A run's step as the models here expect it, where nobody has run it.

Our systems go through derivation, program and simulator, like a run that will happen.
MegaTrain's step is simple enough to add up, part by part. DeepSpeed's schedule and a
resident model's have no model here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.baseline import baseline_bytes, baseline_host_bytes
from lazytrain.schedule.baseline_step import step_parts
from lazytrain.schedule.host_room import host_capacity
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.order import problem_for
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.simulate import timed_step_s
from lazytrain.schedule.solve import Limits
from lazytrain.units import format_bytes


@dataclass(frozen=True)
class Expected:
    """What a step is expected to take and hold; a limit instead, if one is hit.

    ``step_s`` is a step among many, ``timed_s`` the mean of as many steps as a row
    times, between two moments at which nothing is in flight. ``breakdown_s`` names a
    rival's parts as its records do; ours have plans for that.
    """

    step_s: float | None = None
    timed_s: float | None = None
    gpu_bytes: int | None = None
    cpu_bytes: int | None = None
    limit: str = ""
    breakdown_s: dict[str, float] = field(default_factory=dict)


def predict(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
    limits: Limits | None = None,
) -> Expected | None:
    """Return what a row is expected to do, or None for a system without a model.

    Args:
        hardware: Measured rates, or those of a machine described otherwise.
        layers: Measured layers.
        row: The run.
        config: Settings of the pipeline.
        limits: Of each solve; default: the configured ones.
    """
    system = systems.BY_NAME.get(row.system)
    if system is None or not system.is_planned:
        return None
    try:
        problem = problem_for(hardware, layers, row, config, limits)
        plan = problem.solved()
    except (InvalidInput, NoSchedule) as error:
        return Expected(limit=f"OOM: {error}")
    room = host_capacity(config.accelerators[row.accelerator], hardware)
    if system.is_streaming:
        purpose = config.accelerators[row.accelerator].throughput
        steps = purpose.num_steps - purpose.warmup_steps
        return _within(_ours(plan, problem.instance, steps), room)
    expected = _baseline(plan, problem.instance, layers, hardware, row)
    if (expected.gpu_bytes or 0) > hardware.gpu_cap_bytes:
        return Expected(limit=f"OOM: needs {format_bytes(expected.gpu_bytes or 0)}")
    return _within(expected, room)


def _within(expected: Expected, room_bytes: int) -> Expected:
    """Return the expectation, or the host's limit if it is too large for it."""
    if (expected.cpu_bytes or 0) <= room_bytes:
        return expected
    needs, has = format_bytes(expected.cpu_bytes or 0), format_bytes(room_bytes)
    return Expected(limit=f"host OOM: needs {needs} of {has}")


def _ours(plan: Plan, instance: Instance, steps: int) -> Expected:
    """Return the simulator's figures, the mean of ``steps`` timed ones among them."""
    seen = plan.prediction
    if seen is None:
        return Expected(limit="the plan carries no prediction")
    return Expected(
        step_s=seen.step_s,
        timed_s=timed_step_s(plan, instance, steps),
        gpu_bytes=seen.peak_bytes.get("gpu"),
        cpu_bytes=seen.peak_bytes.get("cpu"),
    )


def _baseline(
    plan: Plan,
    instance: Instance,
    layers: LayerProfile,
    hardware: HardwareProfile,
    row: RunRow,
) -> Expected:
    """Return MegaTrain's step: its parts one after another, and what it holds."""
    run = instance.execution
    assert run is not None
    kept = [home == Home.GPU for home in plan.homes]
    parts = step_parts(instance, layers, hardware, row.system, kept)
    parameters = sum(part.num_parameters for part in instance.parts)
    fixed = baseline_bytes(instance, layers, run)
    step_s = sum(parts.values())
    return Expected(
        step_s=step_s,
        timed_s=step_s,  # it leaves nothing in flight
        gpu_bytes=fixed + sum(kept) * instance.boundary_bytes[0],
        cpu_bytes=int(parameters * baseline_host_bytes(layers, run)),
        breakdown_s=parts,
    )
