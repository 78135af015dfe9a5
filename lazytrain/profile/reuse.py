"""Profiles of one machine under another sheet id, without measuring it again.

``h200`` and ``h200-cap70`` are one machine: only what a run may take of its device
differs. A layer's cost depends on neither cap nor host memory.
"""

from __future__ import annotations

from pathlib import Path

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.profile.accelerator import cap_bytes, machine_of
from lazytrain.profile.hardware import settings_for
from lazytrain.profile.same_layers import is_same_device, way_for, way_of
from lazytrain.records import (
    HardwareProfile,
    LayerProfile,
    Provenance,
    read,
    sha256_file,
)
from lazytrain.units import parse_bytes


def reuse_hardware(
    source: Path, accelerator: str, config: PipelineConfig
) -> HardwareProfile:
    """Return a measured profile for another sheet id of the same machine.

    Raises:
        InvalidInput: If the ids name different machines, or the profile's device is
            smaller than the cap.
    """
    measured = read(HardwareProfile, source)
    if machine_of(measured.accelerator) != machine_of(accelerator):
        remedy = f"{source} was measured on {measured.accelerator}; measure this one"
        raise InvalidInput("accelerator", accelerator, remedy)
    caps = [measured.gpu_memory_bytes]
    named = cap_bytes(accelerator)
    if named is not None and named > measured.gpu_memory_bytes:
        remedy = f"the cap is above the memory of {measured.device}"
        raise InvalidInput("accelerator", accelerator, remedy)
    budget = settings_for(config, accelerator).budgets.gpu_cap
    if named is not None:
        caps.append(named)
    if budget != "auto":
        caps.append(parse_bytes(budget, "gpu_cap"))
    return measured.model_copy(
        update={
            "accelerator": accelerator,
            "gpu_cap_bytes": min(caps),
            "provenance": _with_source(measured, source),
        }
    )


def reuse_layers(
    source: Path,
    rows: list[RunRow],
    accelerator: str,
    scale: str,
    config: PipelineConfig,
) -> LayerProfile:
    """Return measured layer costs for another sheet id with the same device.

    Raises:
        InvalidInput: If device, model or the way to run a layer differ.
    """
    measured = read(LayerProfile, source)
    if not is_same_device(measured, accelerator):
        remedy = f"{source} was measured on {measured.accelerator}; measure this one"
        raise InvalidInput("accelerator", accelerator, remedy)
    has, needed = way_of(measured), way_for(rows, accelerator, scale, config)
    if has != needed:
        remedy = f"this run needs {tuple(needed)} (model, length, tokens, dtype, body)"
        raise InvalidInput("layers", tuple(has), remedy)
    return measured.model_copy(
        update={
            "accelerator": accelerator,
            "scale": scale,
            "provenance": _with_source(measured, source),
        }
    )


def _with_source(measured: HardwareProfile | LayerProfile, source: Path) -> Provenance:
    """Return the measurement's provenance, naming the file that was reused."""
    made_from = measured.provenance.made_from | {"measured": sha256_file(source)}
    return measured.provenance.model_copy(update={"made_from": made_from})
