"""The memory model: what a step holds in HBM and host memory beside boundaries.

The one home of these sums: :mod:`derive` takes budgets from them, ``estimate`` and
``fit`` print them. All results are whole bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lazytrain.schedule.instance import Execution, Instance, PartSpec
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.staging import (
    BOUNCE_BUFFERS,
    CONSUMED_BUFFERS,
    STATE_SLOTS,
    UNIT_PARAMETERS,
    staging_buffers,
)

FP32_BYTES = 4
WORKING_BUFFERS = 2
STATE_BYTES = {"fp32": 8.0, "8bit": 2.0 + 8.0 / 4096}
# Beside the weight: fp32 weights are their own master.
MASTER_BYTES = {"fp32": 0, "fp32-split": 2, "bf16": 0, "bf16-stochastic": 0}


@dataclass(frozen=True)
class ModelSizes:
    """Dimensions that the memory model needs; ``itemsize`` is of the compute dtype.

    ``workspace_bytes`` is what one layer's forward and backward hold at the
    micro-batch, saved tensors included.
    """

    hidden: int
    vocab: int
    itemsize: int
    workspace_bytes: int


@dataclass(frozen=True)
class DeviceBytes:
    """HBM that no activation schedule changes, by cause.

    ``transit`` is room for boundaries on their way to or from another tier,
    ``waiting_gradients`` what is drained only as it is consumed. Where a step has
    several waves, every part keeps its own fp32 sum of gradients until the last one.
    """

    reserve: int
    weight_slots: int
    gradient_accumulator: int
    grad_slots: int
    waiting_gradients: int
    ends: int
    end_gradient: int
    loss_chunk: int
    working_hidden: int
    layer_workspace: int
    transit: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class HostBytes:
    """Host memory that no activation schedule changes, by cause.

    ``bounce`` is the pinned staging of NVMe boundaries, 0 without them;
    ``state_staging`` that of optimizer state on NVMe.
    """

    weights: int
    master_remainder: int
    optimizer_state: int
    gradients: int
    bounce: int
    state_staging: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())


def boundary_bytes(run: Execution, sizes: ModelSizes) -> int:
    """Return A, one hidden state of a wave: of the whole batch, layer-major."""
    return run.wave_rows * run.seq_len * sizes.hidden * sizes.itemsize


def device_bytes(
    parts: Sequence[PartSpec], run: Execution, sizes: ModelSizes, offloads: bool
) -> DeviceBytes:
    """Return what a step holds in HBM beside its boundaries.

    Args:
        parts: The model's parts.
        run: How the step is run.
        sizes: The model's dimensions.
        offloads: Whether another tier has room for a boundary.
    """
    layers = [part for part in parts if part.kind == "layer"]
    ends = [part for part in parts if part.kind != "layer"]
    gradient = max((part.gradient_bytes for part in layers), default=0)
    tokens = min(run.loss_chunk_tokens, run.batch * run.seq_len)
    return DeviceBytes(
        reserve=run.reserve_bytes,
        weight_slots=_layer_weights(layers, run),
        gradient_accumulator=_summed(layers, run) * FP32_BYTES,
        grad_slots=run.grad_slots * gradient,
        waiting_gradients=sum(
            part.gradient_bytes for part in layers if run.gradient_drain != "whole"
        ),
        ends=sum(part.weight_bytes for part in ends),
        end_gradient=_summed(ends, run) * FP32_BYTES,
        loss_chunk=2 * tokens * sizes.vocab * sizes.itemsize,
        working_hidden=WORKING_BUFFERS * boundary_bytes(run, sizes),
        layer_workspace=sizes.workspace_bytes,
        transit=transit_buffers(offloads) * boundary_bytes(run, sizes),
    )


def _layer_weights(layers: Sequence[PartSpec], run: Execution) -> int:
    """Return the bytes of the layers' weights on the device."""
    sizes = [part.weight_bytes for part in layers]
    if run.order == "batch-major":
        return sum(sizes)
    slots = len(layers) if run.resident_weights else run.weight_slots
    return min(slots, len(layers)) * max(sizes, default=0)


def _summed(parts: Sequence[PartSpec], run: Execution) -> int:
    """Return the parameters whose fp32 sums exist at once.

    With one wave a part is drained before the next one begins, so one sum serves all.
    """
    counts = [part.num_parameters for part in parts]
    return max(counts, default=0) if run.num_waves == 1 else sum(counts)


def transit_buffers(offloads: bool) -> int:
    """Return hidden states on the move: in use and two read ahead, or one replayed."""
    return 3 if offloads else 1


def planned_bytes(plan: Plan, instance: Instance) -> dict[str, int]:
    """Return what the executor will hold per tier for a plan of a derived instance.

    It allocates once: each kept boundary, a pool for those that pass, one gradient.
    """
    size = max(instance.boundary_bytes)
    run, budget = instance.execution, instance.budget_bytes
    offloads = max(budget.cpu, budget.nvme) >= size
    reserved = WORKING_BUFFERS + transit_buffers(offloads)
    buffers = plan.count(Home.GPU) + staging_buffers(plan) + 1 - reserved
    idle_bounce = budget.nvme >= size and not plan.count(Home.NVME)
    in_dram = plan.count(Home.CPU) - (BOUNCE_BUFFERS if idle_bounce else 0)
    return {
        "gpu": instance.fixed_bytes.gpu
        - (run.reserve_bytes if run else 0)
        + buffers * size
        + kept_bytes(plan, instance),
        "cpu": instance.fixed_bytes.cpu + in_dram * size,
        "nvme": instance.fixed_bytes.nvme + plan.count(Home.NVME) * size,
    }


def kept_bytes(plan: Plan, instance: Instance) -> int:
    """Return what save levels keep of a wave beyond each layer's input."""
    total = 0
    for group in plan.groups:
        for kind, level in zip(instance.layer_types, group.save_level, strict=True):
            menu = {cost.name: cost for cost in instance.levels.get(kind, ())}
            total += menu[level].kept_bytes if level in menu else 0
    return total


def host_bytes(
    parts: Sequence[PartSpec], run: Execution, bounced_bytes: int = 0
) -> HostBytes:
    """Return what a step holds in host memory beside its boundaries.

    Args:
        parts: The model's parts; a tied weight is counted in one of them only.
        run: How the step is run.
        bounced_bytes: Size of a boundary if any may go to NVMe, else 0.
    """
    held = [part for part in parts if part.name not in run.state_on_nvme]
    parameters = sum(part.num_parameters for part in held)
    return HostBytes(
        weights=sum(part.weight_bytes for part in parts),
        master_remainder=parameters * MASTER_BYTES[run.master],
        optimizer_state=int(parameters * state_bytes_per_parameter(run)),
        gradients=_host_gradients(parts, run),
        bounce=BOUNCE_BUFFERS * bounced_bytes,
        state_staging=_state_staging(parts, run),
    )


def _state_staging(parts: Sequence[PartSpec], run: Execution) -> int:
    """Return the staging pages of state on NVMe; a unit may be all fp32 state."""
    moved = [p.num_parameters for p in parts if p.name in run.state_on_nvme]
    unit = min(max(moved, default=0), UNIT_PARAMETERS)
    wide = 8.0 if run.optimizer != "cpu_adamw_8bit" else STATE_BYTES["8bit"]
    return STATE_SLOTS * int(unit * (wide + MASTER_BYTES[run.master]))


def _host_gradients(parts: Sequence[PartSpec], run: Execution) -> int:
    """Return the host's share of the gradients: all, or the ends' and two buffers."""
    if run.gradient_drain == "whole":
        return sum(part.gradient_bytes for part in parts)
    layers = [part.gradient_bytes for part in parts if part.kind == "layer"]
    ends = sum(part.gradient_bytes for part in parts if part.kind != "layer")
    return ends + CONSUMED_BUFFERS * max(layers, default=0)


def state_bytes_per_parameter(run: Execution) -> float:
    """Return the bytes of both AdamW moments per parameter (Section 3.5)."""
    share = {
        "hybrid_adamw_8bit": run.eight_bit_fraction,
        "cpu_adamw_8bit": 1.0,
    }.get(run.optimizer, 0.0)
    return share * STATE_BYTES["8bit"] + (1 - share) * STATE_BYTES["fp32"]


def streamed_bytes_per_parameter(run: Execution) -> float:
    """Return the bytes of state that cross the disk per parameter, each way."""
    return state_bytes_per_parameter(run) + MASTER_BYTES[run.master]
