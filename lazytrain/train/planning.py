"""A plan for a run at hand: measure the machine and the layers, solve, check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lazytrain.config import ExecutorSettings, PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder
from lazytrain.profile.hardware import dtype_of, measure_hardware, settings_for
from lazytrain.profile.layers import bench_for, measure_model
from lazytrain.records import write
from lazytrain.schedule.check import check
from lazytrain.schedule.execution import micro_batch
from lazytrain.schedule.order import problem_for
from lazytrain.schedule.plan import Plan
from lazytrain.units import format_bytes


@dataclass(frozen=True)
class BorderBytes:
    """Device memory that documents' borders take in a step of packed rows.

    ``held`` is there for the whole step: masks ``[b, T, T]`` of each kind of attention
    and rotary tables of every row on its way, positions of all. ``passing`` is what
    making or using one micro-batch's mask takes besides.
    """

    held: int
    passing: int


def border_bytes(
    model_config: Any, row: RunRow, executor: ExecutorSettings
) -> BorderBytes:
    """Return what the borders of a packed batch take on the device."""
    decoder = Decoder(model_config)
    dtype = dtype_of(executor.dtype)
    rows, tokens = row.batch, row.seq_len
    kinds = set(decoder.layer_types) - {"linear_attention"}
    table, _ = decoder.rotary(1, torch.device("cpu"), dtype)
    micro = micro_batch(rows, tokens, executor.micro_batch_tokens)
    # Batch-major, only one wave's are there; under auto it is not known yet.
    held = micro if executor.order == "batch-major" else rows
    masks = len(kinds) * held * tokens**2
    tables = 2 * held * tokens * table.shape[-1] * dtype.itemsize
    places = 2 * rows * tokens * torch.int64.itemsize
    # A comparison beside its result; attention then wants the mask in its own dtype.
    passing = micro * tokens**2 * max(2, dtype.itemsize) if kinds else 0
    return BorderBytes(masks + tables + places, passing)


def without_borders(
    config: PipelineConfig, row: RunRow, model_config: Any, cap_bytes: int
) -> PipelineConfig:
    """Return a configuration whose cap leaves the bytes of packed rows' borders out.

    Args:
        config: Settings.
        row: System, batch and length.
        model_config: Hugging Face configuration of the model.
        cap_bytes: Device memory that the run may take.

    Raises:
        InvalidInput: If the borders leave nothing.
    """
    executor = settings_for(config, row.accelerator).executor
    borders = border_bytes(model_config, row, executor)
    left = cap_bytes - borders.held - borders.passing
    if left <= 0:
        taken = format_bytes(borders.held + borders.passing)
        remedy = f"the borders of packed rows take {taken}; raise it or set pack: false"
        raise InvalidInput("budgets.gpu_cap", format_bytes(cap_bytes), remedy)
    settings = settings_for(config, row.accelerator)
    budgets = settings.budgets.model_copy(update={"gpu_cap": f"{left}B"})
    changed = settings.model_copy(update={"budgets": budgets})
    accelerators = config.accelerators | {row.accelerator: changed}
    return config.model_copy(update={"accelerators": accelerators})


def make_plan(
    row: RunRow,
    config: PipelineConfig,
    model_config: Any,
    out: Path,
    *,
    pack: bool = False,
) -> Plan:
    """Measure, solve and check; leaves the profiles and the instance in ``out``.

    Args:
        row: System, batch and length.
        config: Settings, budgets and limits of the solve.
        model_config: Hugging Face configuration of the model.
        out: Folder for ``hardware.json``, ``layers.json`` and ``instance.json``.
        pack: Whether rows hold several documents, whose borders take memory too.

    Raises:
        InvalidInput: If the budgets are below what a step needs.
        NoSchedule: If the solver ends without a plan.
    """
    executor = settings_for(config, row.accelerator).executor
    hardware = measure_hardware(row.accelerator, config)
    if pack:
        config = without_borders(config, row, model_config, hardware.gpu_cap_bytes)
    bench = bench_for(model_config, row.accelerator, row.batch, row.seq_len, executor)
    layers = measure_model(bench, row.accelerator, row.scale, row.model, executor)
    problem = problem_for(hardware, layers, row, config)
    write(hardware, out / "hardware.json")
    write(layers, out / "layers.json")
    write(problem.instance, out / "instance.json")
    plan = problem.solved()
    check(plan, problem.instance).raise_if_violated()
    return plan
