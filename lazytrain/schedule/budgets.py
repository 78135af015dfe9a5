"""What activations may take in each tier, and what a step holds there besides."""

from __future__ import annotations

from dataclasses import dataclass

from lazytrain.config import AcceleratorSettings
from lazytrain.errors import DoesNotFit, InvalidInput
from lazytrain.records import HardwareProfile
from lazytrain.schedule.host_room import host_capacity, size_of
from lazytrain.schedule.instance import Budget, Execution, PartSpec
from lazytrain.schedule.memory import (
    DeviceBytes,
    HostBytes,
    ModelSizes,
    boundary_bytes,
    device_bytes,
    host_bytes,
)
from lazytrain.schedule.state_home import disk_bytes
from lazytrain.units import format_bytes

# The rest of a disk stays free for everything not modelled.
DISK_SHARE = 0.5


@dataclass(frozen=True)
class Held:
    """What a step holds beside activations, by cause, and the room that is left.

    Attributes:
        device: Bytes in HBM.
        host: Bytes in host memory.
        state_bytes: Optimizer state on NVMe.
        cpu_bytes: What activations may take of host memory.
        nvme_bytes: What they may take of the disk.
    """

    device: DeviceBytes
    host: HostBytes
    state_bytes: int
    cpu_bytes: int
    nvme_bytes: int


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
    text = settings.budgets.gpu_cap
    cap = size_of(text, hardware.gpu_cap_bytes, "budgets.gpu_cap")
    if cap <= 0:
        remedy = "the profile has no device memory; write a size, such as 64MiB"
        raise InvalidInput("budgets.gpu_cap", text, remedy)
    held = held_bytes(hardware, settings, parts, run, sizes)
    device, host = held.device.total, held.host.total
    if device >= cap:
        raise DoesNotFit("budgets.gpu_cap", format_bytes(cap), _too_small(held.device))
    left = Budget(gpu=cap - device, cpu=held.cpu_bytes, nvme=held.nvme_bytes)
    return left, Budget(gpu=device, cpu=host, nvme=held.state_bytes)


def held_bytes(
    hardware: HardwareProfile,
    settings: AcceleratorSettings,
    parts: tuple[PartSpec, ...],
    run: Execution,
    sizes: ModelSizes,
) -> Held:
    """Return what a step holds in each tier, whatever the device's cap.

    Raises:
        InvalidInput: If a budget has no unit, or the disk cannot hold the state.
    """
    texts = settings.budgets
    disk = int(hardware.disk_free_bytes * DISK_SHARE)
    state = disk_bytes(run, parts, disk)
    nvme = size_of(texts.nvme_activations, disk - state, "budgets.nvme_activations")
    boundary = boundary_bytes(run, sizes)
    # The boundaries of one wave stay in HBM, or nowhere.
    stays = run.order == "batch-major"
    nvme = 0 if stays else nvme
    host = host_bytes(parts, run, boundary if nvme >= boundary else 0)
    room = max(0, host_capacity(settings, hardware) - host.total)
    cpu = size_of(texts.cpu_activations, room, "budgets.cpu_activations")
    cpu = 0 if stays else cpu
    device = device_bytes(parts, run, sizes, max(cpu, nvme) >= boundary)
    return Held(device, host, state, cpu, nvme)


def _too_small(device: DeviceBytes) -> str:
    """Say what a step needs before any activation, largest first."""
    items = sorted(vars(device).items(), key=lambda item: -item[1])
    total = sum(size for _, size in items)
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in items[:4])
    return (
        f"a step needs {format_bytes(total)} before any activation ({largest}); raise "
        "the cap, or lower micro_batch_tokens, weight_slots, loss_chunk_tokens or batch"
    )
