"""Profiles of one machine under another sheet id, without measuring it again.

``h200`` and ``h200-cap70`` are one machine: only what a run may take of its device
differs. A layer's cost depends on neither cap nor host memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.profile.accelerator import base_of, cap_bytes, machine_of
from lazytrain.profile.hardware import settings_for
from lazytrain.profile.layers import micro_batch_of, rows_of
from lazytrain.records import (
    HardwareProfile,
    LayerProfile,
    Provenance,
    read,
    sha256_file,
)
from lazytrain.units import parse_bytes

# Model, sequence length, tokens in one pass, dtype and body of a layer's measurement.
_Way: TypeAlias = tuple[str, int, int, str, str]


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
    if base_of(measured.accelerator) != base_of(accelerator):
        remedy = f"{source} was measured on {measured.accelerator}; measure this one"
        raise InvalidInput("accelerator", accelerator, remedy)
    has, needed = _way_of(measured), _way_for(rows, accelerator, scale, config)
    if has != needed:
        remedy = f"this run needs {needed} (model, length, tokens, dtype, body)"
        raise InvalidInput("layers", has, remedy)
    return measured.model_copy(
        update={
            "accelerator": accelerator,
            "scale": scale,
            "provenance": _with_source(measured, source),
        }
    )


def is_reusable(
    source: Path,
    rows: list[RunRow],
    accelerator: str,
    scale: str,
    config: PipelineConfig,
) -> bool:
    """Whether ``reuse_layers`` takes a profile: same device, same way to run a layer.

    A card under a small cap runs fewer tokens at a time: its layers are measured anew.
    """
    measured = read(LayerProfile, source)
    same = base_of(measured.accelerator) == base_of(accelerator)
    return same and _way_of(measured) == _way_for(rows, accelerator, scale, config)


def _way_of(measured: LayerProfile) -> _Way:
    """Return how a profile's layers were run."""
    sizes = (measured.model, measured.seq_len, measured.tokens)
    return (*sizes, measured.dtype, measured.body)


def _way_for(
    rows: list[RunRow], accelerator: str, scale: str, config: PipelineConfig
) -> _Way:
    """Return how the rows of a scale run a layer: that of the largest batch."""
    found = rows_of(rows, accelerator, scale)
    settings = settings_for(config, accelerator).executor
    batch, length = max(row.batch for row in found), found[0].seq_len
    tokens = length * micro_batch_of(batch, length, settings.micro_batch_tokens)
    return found[0].model, length, tokens, settings.dtype, settings.body


def _with_source(measured: HardwareProfile | LayerProfile, source: Path) -> Provenance:
    """Return the measurement's provenance, naming the file that was reused."""
    made_from = measured.provenance.made_from | {"measured": sha256_file(source)}
    return measured.provenance.model_copy(update={"made_from": made_from})
