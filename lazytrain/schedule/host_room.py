"""What a host has room for, and where gradients and optimizer state go accordingly."""

from __future__ import annotations

from typing import Final

from lazytrain import systems
from lazytrain.config import AcceleratorSettings, PipelineConfig, RunRow
from lazytrain.records import HardwareProfile
from lazytrain.schedule.instance import Execution, PartSpec
from lazytrain.schedule.memory import host_bytes
from lazytrain.schedule.state_home import with_state_home
from lazytrain.units import GIB, parse_bytes

OURS: Final = frozenset(systems.names("lazytrain"))
# The rest of a host's memory stays free for everything not modelled.
HOST_SHARE: Final = 0.9
# The most of a host's capacity that a step's fixed part may take before gradients wait.
DRAIN_SHARE: Final = 7 / 8

# Interpreter, libraries and a CUDA context beside the plan's own buffers: 1.9 GiB in
# runs of 3B and 27B on an H200.
PROCESS_BYTES: Final = 3 * GIB


def with_homes(
    run: Execution,
    parts: tuple[PartSpec, ...],
    config: PipelineConfig,
    row: RunRow,
    hardware: HardwareProfile,
    bounce_bytes: int,
) -> Execution:
    """Return the run with gradients and optimizer state placed.

    Gradients that wait in HBM are the cheaper remedy for a small host, so ``auto``
    moves state to NVMe only for what is still too much then, beside ``bounce_bytes``
    for boundaries on NVMe. A rival's step drains its gradients at once and keeps its
    state on the host, whatever the planner could do.
    """
    if row.system not in OURS:
        return run
    settings = config.accelerators[row.accelerator]
    wanted = config.optimizer.state_home
    room = host_capacity(settings, hardware) - bounce_bytes
    if wanted == "nvme":
        run = with_state_home(run, parts, wanted, room)
    run = with_drain(run, parts, settings, hardware)
    return with_state_home(run, parts, wanted, room)


def with_drain(
    run: Execution,
    parts: tuple[PartSpec, ...],
    settings: AcceleratorSettings,
    hardware: HardwareProfile,
) -> Execution:
    """Return the run with its gradients' way down decided.

    They are drained only as they are consumed if holding them all would leave the host
    less than an eighth for boundaries and for the process itself.
    """
    wanted = settings.executor.gradient_drain
    if wanted == "auto":
        room = DRAIN_SHARE * host_capacity(settings, hardware)
        wanted = "whole" if host_bytes(parts, run).total <= room else "as-consumed"
    return run.model_copy(update={"gradient_drain": wanted})


def host_capacity(settings: AcceleratorSettings, hardware: HardwareProfile) -> int:
    """Return the host memory that a plan may use, in bytes."""
    automatic = int(hardware.host_memory_bytes * HOST_SHARE)
    is_gpu = hardware.gpu_memory_bytes > 0
    return host_room(settings.budgets.host_capacity, automatic, is_gpu=is_gpu)


def host_room(text: str, automatic: int, *, is_gpu: bool) -> int:
    """Return the host memory that a plan may use, in bytes.

    A configured capacity is the whole process's, as a run's record checks it; without
    one the share that stays free has room for the process.
    """
    room = size_of(text, automatic, "budgets.host_capacity")
    is_bound = text != "auto" and is_gpu
    return max(0, room - PROCESS_BYTES) if is_bound else room


def size_of(text: str, automatic: int, field: str) -> int:
    """Return a budget given as text, or the automatic one."""
    return automatic if text == "auto" else parse_bytes(text, field)
