"""Predicted rows: a table of their own, and columns of their own beside measured ones.

A predicted cell comes from profiles and models alone. It names the machine it is for,
the machine whose layers were measured, and how the one was derived from the other. Its
step is the mean of as many steps as the row would be timed over, from rest to rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import StringConstraints

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.models.scales import model_config
from lazytrain.profile.accelerator import base_of
from lazytrain.profile.targets import (
    PublishedMachine,
    Target,
    resized,
    scaled_layers,
    target_for,
)
from lazytrain.records import Contract, HardwareProfile, LayerProfile
from lazytrain.report.frames import NOT_AVAILABLE, fixed, gigabytes, order
from lazytrain.report.parameters import num_parameters
from lazytrain.schedule.predict import Expected, predict
from lazytrain.schedule.shapes import ModelShape, model_shape
from lazytrain.schedule.solve import Limits

Predicted = Annotated[
    str, StringConstraints(pattern=r"^(\d+(\.\d+)?|OOM|host OOM|n/a)?$")
]
"""A predicted number, a predicted limit, or that nothing predicts it."""
LIMITS = Limits(time_limit_s=20.0, gap=0.001)


class PredictedRow(Contract):
    """One row of ``table3_predicted.csv``."""

    accelerator: str
    predicted_for: str
    layers_measured_on: str
    basis: str
    scale: str
    system: str
    model: str
    batch: int
    seq_len: int
    predicted_tflops: Predicted
    predicted_tokens_per_s: Predicted
    predicted_step_s: Predicted
    predicted_gpu_gb: Predicted
    predicted_cpu_gb: Predicted
    remark: str


def predicted_rows(
    rows: Sequence[RunRow],
    hardware: Sequence[HardwareProfile],
    layers: Sequence[LayerProfile],
    machines: Sequence[PublishedMachine],
    config: PipelineConfig,
) -> list[PredictedRow]:
    """Return a predicted row per row of the sheet whose machine can be described.

    Args:
        rows: The sheet's rows.
        hardware: Measured machines; the first is the one that others are scaled from.
        layers: Measured layer profiles.
        machines: Published machines.
        config: Settings of every sheet id.
    """
    found = []
    shown = (row for row in rows if row.table3 or row.table5)
    for row in sorted(shown, key=lambda r: order(r.accelerator, r.scale, r.system)):
        budgets = config.accelerators[row.accelerator].budgets
        target = target_for(row.accelerator, budgets, hardware, machines)
        if target is not None:
            found.append(_row(row, target, hardware, layers, config))
    return found


def _row(
    row: RunRow,
    target: Target,
    hardware: Sequence[HardwareProfile],
    layers: Sequence[LayerProfile],
    config: PipelineConfig,
) -> PredictedRow:
    """Return one row's prediction."""
    measured_on, costs, how = _layers(row, target, hardware, layers)
    expected = None
    if costs is not None:
        expected = predict(target.hardware, costs, row, config, LIMITS)
    parameters = num_parameters(row.model)
    return PredictedRow(
        **row.model_dump(
            include={"accelerator", "scale", "system", "model", "batch", "seq_len"}
        ),
        predicted_for=target.name,
        layers_measured_on=measured_on,
        basis="; ".join(part for part in (target.basis, how) if part),
        **_cells(row, expected, parameters),
    )


def _layers(
    row: RunRow,
    target: Target,
    hardware: Sequence[HardwareProfile],
    layers: Sequence[LayerProfile],
) -> tuple[str, LayerProfile | None, str]:
    """Return where layers were measured, their costs on the target, and how made."""
    machines = ((profile, _measured_on(profile, hardware)) for profile in layers)
    usable = [(profile, machine) for profile, machine in machines if machine]
    usable.sort(key=lambda pair: pair[0].accelerator != row.accelerator)
    for profile, source in usable:
        if profile.model == row.model:
            costs = scaled_layers(profile, source, target.hardware)
            how = "" if source.device == target.hardware.device else "layers scaled"
            return source.device, costs, how
    if not usable:
        return NOT_AVAILABLE, None, ""
    shape = model_shape(model_config(row.model).to_dict(), row.model)
    nearest = nearest_profile(shape, [profile for profile, _ in usable])
    source = next(machine for profile, machine in usable if profile is nearest)
    costs = resized(nearest, shape)
    how = f"layers of {nearest.model} resized by their parameters"
    return source.device, scaled_layers(costs, source, target.hardware), how


def _measured_on(
    layers: LayerProfile, hardware: Sequence[HardwareProfile]
) -> HardwareProfile | None:
    """Return the machine that layers were measured on, or one with the same card."""
    base = base_of(layers.accelerator)
    same = [machine for machine in hardware if base_of(machine.accelerator) == base]
    same.sort(key=lambda machine: machine.accelerator != layers.accelerator)
    return same[0] if same else None


def nearest_profile(
    shape: ModelShape, profiles: Sequence[LayerProfile]
) -> LayerProfile:
    """Return the profile with the same types of layers, then the closest width."""
    kinds = set(shape.layer_types)
    return min(
        profiles,
        key=lambda profile: (
            set(profile.layer_types) != kinds,
            abs(profile.hidden_size - shape.hidden),
        ),
    )


def _cells(row: RunRow, expected: Expected | None, parameters: int) -> dict[str, str]:
    """Return the predicted cells of a row, and a remark where there is no number."""
    names = ("tflops", "tokens_per_s", "step_s", "gpu_gb", "cpu_gb")
    if expected is None or expected.timed_s is None:
        limit = expected.limit if expected else "no model of this system's step"
        head = limit.split(":")[0]
        cell = head if head in {"OOM", "host OOM"} else NOT_AVAILABLE
        return {f"predicted_{name}": cell for name in names} | {"remark": limit}
    tokens_per_s = row.batch * row.seq_len / expected.timed_s
    values = (
        fixed(6 * parameters * tokens_per_s / 1e12, 1),
        fixed(tokens_per_s, 0),
        fixed(expected.timed_s, 2),
        fixed(gigabytes(expected.gpu_bytes), 1),
        fixed(gigabytes(expected.cpu_bytes), 1),
    )
    cells = {f"predicted_{n}": v for n, v in zip(names, values, strict=True)}
    return cells | {"remark": ""}


def by_row(rows: Iterable[PredictedRow]) -> dict[tuple[str, str, str], PredictedRow]:
    """Return predictions by (accelerator, scale, system)."""
    return {(row.accelerator, row.scale, row.system): row for row in rows}
