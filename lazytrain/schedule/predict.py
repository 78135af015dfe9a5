"""A run's step as the models here expect it, where nobody has run it.

Our systems go through derivation, program and simulator, like a run that will happen.
MegaTrain's step is simple enough to add up: whole-batch passes of eager layers one
after another, each as long as compute or the copy of its weights, then a tail of
clipping, Adam and copying. DeepSpeed's schedule and a resident model's have no model
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import HardwareProfile, LayerCost, LayerProfile
from lazytrain.schedule.baseline import baseline_bytes
from lazytrain.schedule.host_room import host_capacity
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.order import problem_for
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.solve import Limits
from lazytrain.units import format_bytes

# Eager layers against compiled ones, forward and backward: 456 against 604 TFLOPS for a
# resident 3B layer at 16k tokens on an H200, 540 against 633 for a 7B layer.
EAGER = 1.25
# MegaTrain's tail that nothing overlaps: clipping on the host, publishing the weights
# and zeroing took 2.6 + 0.65 + 0.7 s at 7.6e9 parameters on 16 cores beside an H200.
TAIL_S_PER_PARAMETER = 5.2e-10
HOST_BYTES_PER_PARAMETER = 14


@dataclass(frozen=True)
class Expected:
    """What a step is expected to take and hold; a limit instead, if one is hit."""

    step_s: float | None = None
    gpu_bytes: int | None = None
    cpu_bytes: int | None = None
    limit: str = ""


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
        return _within(_ours(plan), room)
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


def _ours(plan: Plan) -> Expected:
    """Return the simulator's figures."""
    seen = plan.prediction
    if seen is None:
        return Expected(limit="the plan carries no prediction")
    return Expected(
        step_s=seen.step_s,
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
    """Return MegaTrain's step: passes, turn, and an exposed tail."""
    costs = {cost.layer_type: cost for cost in layers.layers}
    scale = row.batch * row.seq_len / layers.tokens
    kept = [home == Home.GPU for home in plan.homes]
    step_s = layers.embedding_s * scale + EAGER * layers.loss_s * scale
    for i, kind in enumerate(layers.layer_types):
        forward, backward = _passes_s(costs[kind], scale)
        copy = costs[kind].weight_bytes / hardware.link.h2d_together
        passes = [forward, *([forward] if _replays(row.system, kept, i) else [])]
        step_s += sum(max(seconds, copy) for seconds in (*passes, forward + backward))
    parameters = sum(part.num_parameters for part in plan.parts)
    rate = instance.costs.optimizer_parameters_per_s
    step_s += parameters * (TAIL_S_PER_PARAMETER + (1 / rate if rate else 0.0))
    run = instance.execution
    fixed = baseline_bytes(instance, layers, run) if run else 0
    return Expected(
        step_s=step_s,
        gpu_bytes=fixed + sum(kept) * instance.boundary_bytes[0],
        cpu_bytes=HOST_BYTES_PER_PARAMETER * parameters,
    )


def _passes_s(cost: LayerCost, scale: float) -> tuple[float, float]:
    """Return seconds of an eager forward, and of a backward without recomputation."""
    full = cost.levels[-1] if cost.levels else None
    backward = full.backward_s if full else max(cost.backward_s - cost.forward_s, 0.0)
    forward = full.forward_s if full else cost.forward_s
    return EAGER * forward * scale, EAGER * backward * scale


def _replays(system: str, kept: list[bool], layer: int) -> bool:
    """Whether the step runs a layer once more without a graph before its backward.

    The system as it is replays every layer of a block; on a plan, all but the last.
    """
    if system == "megatrain-single-recompute":
        return False
    return system != "megatrain-milp" or not kept[layer + 1]
