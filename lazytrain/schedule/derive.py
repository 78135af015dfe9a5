"""From measured profiles and a row of the run sheet to the planner's instance."""

from __future__ import annotations

import math
from typing import Any

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.baseline import ON_BASELINE, with_baseline_memory
from lazytrain.schedule.budgets import budgets
from lazytrain.schedule.costs import at_least, bandwidth_of, level_costs, step_costs
from lazytrain.schedule.execution import execution, settings_of
from lazytrain.schedule.host_room import with_homes
from lazytrain.schedule.instance import Execution, Instance, Options, PartSpec
from lazytrain.schedule.memory import boundary_bytes
from lazytrain.schedule.parts import model_sizes, part_specs
from lazytrain.schedule.staging import BOUNCE_BUFFERS
from lazytrain.schedule.state_home import left_for_boundaries

# The planner's method by system; a system that has none uses the program.
METHODS = {system.name: system.method for system in systems.ALL if system.method}


def derive_instance(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
) -> Instance:
    """Return the planning problem of one run.

    Times are scaled from the profiled tokens to the batch. Windows last as long as the
    slower of compute and weight streaming; gradients go down in the backward, where
    the link's other direction is, so they take nothing from the write windows.

    A batch-major step keeps weights and gradient sums in HBM, and its boundaries, those
    of one wave, there too or nowhere. ``order: auto`` is decided by :mod:`order`, which
    derives both; here it is layer-major.

    Raises:
        InvalidInput: If the sheet id has no settings, a budget has no unit, the batch
            is impossible, or the cap is below what a step needs without activations.
    """
    parts = part_specs(layers)
    run = placed(hardware, layers, row, config, parts)
    sizes = model_sizes(layers, run)
    settings = settings_of(config, row)
    budget, fixed = budgets(hardware, settings, parts, run, sizes)
    num_layers = len(layers.layer_types)
    instance = Instance(
        name=f"{row.accelerator}/{row.scale}/{row.system}",
        model=row.model,
        layers=num_layers,
        layer_types=layers.layer_types,
        boundary_bytes=(boundary_bytes(run, sizes),) * (num_layers + 1),
        budget_bytes=budget,
        **_times(hardware, layers, parts, run, fixed.nvme),
        # A real step reads a boundary before the layer that needs it, and holds what
        # it recomputes; blocks beyond sqrt(L) would only hold more of it.
        max_block=max(8, math.ceil(math.sqrt(num_layers))),
        options=Options(read_deadline="layer", transient=True, memory="static"),
        method=METHODS.get(row.system, "milp"),
        fixed_bytes=fixed,
        parts=parts,
        execution=run,
    )
    if row.system in ON_BASELINE:
        return with_baseline_memory(instance, layers)
    return instance


def placed(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
    parts: tuple[PartSpec, ...],
) -> Execution:
    """Return how the row is to be run, its gradients and optimizer state placed."""
    run = execution(hardware, layers, row, config)
    bounced = 0
    if run.order != "batch-major":
        bounced = BOUNCE_BUFFERS * boundary_bytes(run, model_sizes(layers, run))
    return with_homes(run, parts, config, row, hardware, bounced)


def _times(
    hardware: HardwareProfile,
    layers: LayerProfile,
    parts: tuple[PartSpec, ...],
    run: Execution,
    state_bytes: int,
) -> dict[str, Any]:
    """Return the instance's seconds and rates, and what else moves in its windows.

    ``state_bytes`` of optimizer state on NVMe leave the disk that much slower for
    boundaries.
    """
    scale = run.batch * run.seq_len / layers.tokens
    costs = step_costs(hardware, layers, run, scale)
    forward, backward = costs.forward_s, costs.backward_s
    weights = _streamed_weights(parts, run)
    rates = left_for_boundaries(
        bandwidth_of(hardware), state_bytes, sum(forward), sum(backward)
    )
    return {
        "rho_s": forward,
        "window_write_s": at_least(forward, weights, rates.h2d),
        "window_read_s": at_least(backward, weights, rates.h2d),
        "mandatory_d2h_bytes": (0,) * len(forward),
        "mandatory_h2d_bytes": weights,
        "bandwidth": rates,
        "costs": costs,
        "levels": level_costs(layers, run, scale),
        **_tie_breaks(min(forward)),
    }


def _streamed_weights(parts: tuple[PartSpec, ...], run: Execution) -> tuple[int, ...]:
    """Return each layer's bytes on their way to the device, 0 for resident weights."""
    return tuple(
        0 if run.resident_weights else part.weight_bytes
        for part in parts
        if part.kind == "layer"
    )


def _tie_breaks(cheapest_s: float) -> dict[str, float]:
    """Return the objective's small terms.

    Far below the cheapest recomputation, and DRAM dearer than HBM, so that what fits in
    HBM stays there.
    """
    return {
        "lambda_z_s": min(1e-4, cheapest_s / 100),
        "lambda_n_s": min(1e-3, cheapest_s / 10),
        "lambda_c_s": min(1e-5, cheapest_s / 1000),
    }
