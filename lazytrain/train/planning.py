"""A plan for a run at hand: measure the machine and the layers, solve, check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.profile.hardware import measure_hardware, settings_for
from lazytrain.profile.layers import bench_for, measure_model
from lazytrain.records import write
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.solve import Limits, solve


def make_plan(
    row: RunRow, config: PipelineConfig, model_config: Any, out: Path
) -> Plan:
    """Measure, solve and check; leaves the profiles and the instance in ``out``.

    Args:
        row: System, batch and length.
        config: Settings, budgets and limits of the solve.
        model_config: Hugging Face configuration of the model.
        out: Folder for ``hardware.json``, ``layers.json`` and ``instance.json``.

    Raises:
        InvalidInput: If the budgets are below what a step needs.
        NoSchedule: If the solver ends without a plan.
    """
    executor = settings_for(config, row.accelerator).executor
    hardware = measure_hardware(row.accelerator, config)
    bench = bench_for(model_config, row.accelerator, row.batch, row.seq_len, executor)
    layers = measure_model(bench, row.accelerator, row.scale, row.model, executor)
    instance = derive_instance(hardware, layers, row, config)
    write(hardware, out / "hardware.json")
    write(layers, out / "layers.json")
    write(instance, out / "instance.json")
    solver = config.solver
    plan = solve(instance, Limits(solver.time_limit_s, solver.gap, solver.seed))
    check(plan, instance).raise_if_violated()
    return plan
