"""How a row is to be run: the sheet's words, then the settings of its accelerator."""

from __future__ import annotations

from typing import Literal

from lazytrain import systems
from lazytrain.config import (
    AcceleratorSettings,
    Body,
    Dtype,
    ExecutorSettings,
    PipelineConfig,
    RunRow,
)
from lazytrain.errors import InvalidInput
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.host_room import OURS
from lazytrain.schedule.instance import Execution
from lazytrain.units import GIB, parse_bytes

OPTIMIZERS = {system.name: system.optimizer for system in systems.ALL}


def settings_of(config: PipelineConfig, row: RunRow) -> AcceleratorSettings:
    """Return the settings of the row's sheet id.

    Raises:
        InvalidInput: If there are none.
    """
    if row.accelerator not in config.accelerators:
        known = ", ".join(config.accelerators)
        raise InvalidInput("accelerator", row.accelerator, f"choose one of {known}")
    return config.accelerators[row.accelerator]


def execution(
    hardware: HardwareProfile, layers: LayerProfile, row: RunRow, config: PipelineConfig
) -> Execution:
    """Return how the row is to be run: the sheet, then the accelerator's settings."""
    run = asked(row, config, layers.dtype, layers.body)
    return run.model_copy(update={"reserve_bytes": reserve_bytes(hardware)})


def asked(row: RunRow, config: PipelineConfig, dtype: Dtype, body: Body) -> Execution:
    """Return what the row and the settings alone say of a run, for any machine."""
    settings = settings_of(config, row).executor
    optimizer = config.optimizer
    order = order_of(settings, row)
    return Execution(
        batch=row.batch,
        seq_len=row.seq_len,
        micro_batch=micro_batch(row.batch, row.seq_len, settings.micro_batch_tokens),
        order="batch-major" if order == "batch-major" else "layer-major",
        save_level=settings.save_level,
        body=body,
        # Every wave uses every layer: streamed, the weights would cross once a wave.
        resident_weights=settings.resident_weights or order == "batch-major",
        prefetch_distance=settings.prefetch_distance,
        weight_slots=settings.weight_slots,
        grad_slots=settings.grad_slots,
        chunk_bytes=parse_bytes(settings.chunk_bytes, "executor.chunk_bytes"),
        loss_chunk_tokens=settings.loss_chunk_tokens,
        optimizer=OPTIMIZERS.get(row.system) or optimizer.type,
        eight_bit_fraction=optimizer.eight_bit_fraction,
        master="fp32" if dtype == "float32" else optimizer.master,
        optimizer_threads=optimizer.threads,
    )


def order_of(
    settings: ExecutorSettings, row: RunRow
) -> Literal["layer-major", "batch-major", "auto"]:
    """Return the order that a row asks for; a rival's step has only one."""
    return settings.order if row.system in OURS else "layer-major"


def reserve_bytes(hardware: HardwareProfile) -> int:
    """Return what the allocator's slack takes from a device's cap; 0 on a CPU."""
    if hardware.gpu_memory_bytes == 0:
        return 0
    return min(4 * GIB, hardware.gpu_memory_bytes // 20)


def micro_batch(batch: int, seq_len: int, tokens: int) -> int:
    """Return the largest divisor of the batch within ``tokens``, at least 1."""
    fitting = max(1, tokens // seq_len)
    return max(d for d in range(1, batch + 1) if batch % d == 0 and d <= fitting)
