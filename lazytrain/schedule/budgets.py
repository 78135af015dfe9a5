"""What activations may take in each tier, and what a step holds there besides."""

from __future__ import annotations

from lazytrain.config import AcceleratorSettings
from lazytrain.errors import DoesNotFit, InvalidInput
from lazytrain.records import HardwareProfile
from lazytrain.schedule.host_room import host_capacity, size_of
from lazytrain.schedule.instance import Budget, Execution, PartSpec
from lazytrain.schedule.memory import (
    ModelSizes,
    boundary_bytes,
    device_bytes,
    host_bytes,
)
from lazytrain.schedule.state_home import disk_bytes
from lazytrain.units import format_bytes

# The rest of a disk stays free for everything not modelled.
DISK_SHARE = 0.5


def budgets(
    hardware: HardwareProfile,
    settings: AcceleratorSettings,
    parts: tuple[PartSpec, ...],
    run: Execution,
    sizes: ModelSizes,
) -> tuple[Budget, Budget]:
    """Return the activation budgets, and what each tier holds besides.

    Raises:
        InvalidInput: If a cap is missing.
        DoesNotFit: If it is below what a step needs without any activation.
    """
    texts = settings.budgets
    cap = size_of(texts.gpu_cap, hardware.gpu_cap_bytes, "budgets.gpu_cap")
    if cap <= 0:
        remedy = "the profile has no device memory; write a size, such as 64MiB"
        raise InvalidInput("budgets.gpu_cap", texts.gpu_cap, remedy)
    disk = int(hardware.disk_free_bytes * DISK_SHARE)
    state = disk_bytes(run, parts, disk)
    nvme = size_of(texts.nvme_activations, disk - state, "budgets.nvme_activations")
    boundary = boundary_bytes(run, sizes)
    if run.order == "batch-major":
        nvme = 0
    host = host_bytes(parts, run, boundary if nvme >= boundary else 0).total
    capacity = host_capacity(settings, hardware)
    cpu = size_of(
        texts.cpu_activations, max(0, capacity - host), "budgets.cpu_activations"
    )
    if run.order == "batch-major":
        cpu = 0
    device = device_bytes(parts, run, sizes, max(cpu, nvme) >= boundary)
    if device.total >= cap:
        raise DoesNotFit("budgets.gpu_cap", format_bytes(cap), _too_small(device))
    fixed = Budget(gpu=device.total, cpu=host, nvme=state)
    return Budget(gpu=cap - device.total, cpu=cpu, nvme=nvme), fixed


def _too_small(device: object) -> str:
    """Say what a step needs before any activation, largest first."""
    items = sorted(vars(device).items(), key=lambda item: -item[1])
    total = sum(size for _, size in items)
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in items[:4])
    return (
        f"a step needs {format_bytes(total)} before any activation ({largest}); raise "
        "the cap, or lower micro_batch_tokens, weight_slots, loss_chunk_tokens or batch"
    )
