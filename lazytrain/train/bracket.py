"""Where to look for the largest batch that a system fits.

A bracket is typed in, or comes from an estimate: what the system is expected to hold on
the device (and, with ours, in every tier) at a batch, from the measured layers. Only
probes say what fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.optim.state import bytes_per_parameter
from lazytrain.profile.hardware import settings_for
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.baseline import (
    EAGER_SLACK,
    baseline_bytes,
    least_bytes,
    whole_bytes,
)
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import reserve_bytes
from lazytrain.schedule.fit import largest_without, reason_against
from lazytrain.schedule.host_room import host_capacity
from lazytrain.schedule.parts import ITEMSIZE, part_specs
from lazytrain.units import format_bytes

AUTO: Final = "auto"
# Estimates of rivals lie within a quarter of the peaks of recorded runs (a test holds
# them to it); our own are the planner's, which refuses what is above them.
RIVAL_SPREAD: Final = 0.25
# Logits in bf16 and fp32 and the gradients of both.
FULL_LOGITS_BYTES: Final = 12
CHUNK_LOGITS_BYTES: Final = 6
GATHERED_LAYERS: Final = 4  # ZeRO-3's parameters and gradients on the device at once
# Beside those, what DeepSpeed's defaults let stay of a large model: a billion gathered
# parameters and two buckets of half a billion gradients. A step of one sequence of 3B
# holds 15.1 GB; without these 9.6 were expected.
LIVE_PARAMETERS: Final = 10**9
BUCKET_GRADIENTS: Final = 5 * 10**8


@dataclass(frozen=True)
class Bracket:
    """Where to look: ``low`` is believed feasible, ``high`` is the largest of interest.

    Neither is trusted: only probes say what is feasible.

    Attributes:
        estimated: The batch that the bracket was laid around; None if it was typed in.
    """

    low: int
    high: int
    estimated: int | None = None

    def __post_init__(self) -> None:
        """Refuse an empty bracket."""
        if not 1 <= self.low <= self.high:
            raise InvalidInput(
                "bracket", f"{self.low}:{self.high}", "need 1 <= low <= high"
            )


def typed(text: str) -> Bracket:
    """Return the bracket that ``LOW:HIGH`` names.

    Raises:
        InvalidInput: If the text is not two numbers, the smaller one first.
    """
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal()):
        remedy = "write LOW:HIGH, such as 16:256, or auto"
        raise InvalidInput("search_batch", text, remedy)
    return Bracket(int(low), int(high))


def estimated(
    hardware: HardwareProfile, layers: LayerProfile, row: RunRow, config: PipelineConfig
) -> Bracket:
    """Return a bracket around the largest batch that a row's system should fit.

    Args:
        hardware: The machine, with its caps.
        layers: The model's measured layers.
        row: The row; its batch is ignored.
        config: Settings of the pipeline.
    """

    def trial(batch: int) -> str:
        changed = row.model_copy(update={"batch": batch})
        return obstacle(hardware, layers, changed, config)

    found, _ = largest_without(trial, 1)
    largest = found or 0
    if systems.BY_NAME[row.system].is_streaming:
        return Bracket(max(1, largest // 2), max(1, largest), largest)
    low = max(1, math.floor((1 - RIVAL_SPREAD) * largest))
    return Bracket(low, max(1, math.ceil((1 + RIVAL_SPREAD) * largest)), largest)


def obstacle(
    hardware: HardwareProfile, layers: LayerProfile, row: RunRow, config: PipelineConfig
) -> str:
    """Return why a row is not expected to fit at its batch, or nothing if it is."""
    if systems.BY_NAME[row.system].is_streaming:
        room = host_capacity(settings_for(config, row.accelerator), hardware)
        return reason_against(hardware, layers, row, config, room)
    needed = rival_device_bytes(hardware, layers, row, config)
    if needed <= hardware.gpu_cap_bytes:
        return ""
    asked, has = format_bytes(needed), format_bytes(hardware.gpu_cap_bytes)
    return f"needs {asked} of {has} of device memory"


def rival_device_bytes(
    hardware: HardwareProfile, layers: LayerProfile, row: RunRow, config: PipelineConfig
) -> int:
    """Return what a rival is expected to hold on the device at its row's batch."""
    family = systems.BY_NAME[row.system].family
    reserve = reserve_bytes(hardware)
    if family == "megatrain":
        instance = derive_instance(hardware, layers, row, config)
        assert instance.execution is not None
        baseline = baseline_bytes(instance, layers, instance.execution)
        return reserve + baseline + least_bytes(instance)
    if family == "resident":
        return reserve + int(_resident_bytes(layers, row, config))
    return reserve + int(_zero3_bytes(layers, row))


def _per_token(layers: LayerProfile) -> tuple[float, float, float]:
    """Return bytes per token: all boundaries, one layer whole, all layers whole."""
    costs = {cost.layer_type: cost for cost in layers.layers}
    kinds = [costs[kind] for kind in layers.layer_types]
    whole = [whole_bytes(cost) for cost in kinds]
    boundaries = sum(cost.boundary_bytes for cost in kinds)
    sizes = (boundaries, max(whole), sum(whole))
    return sizes[0] / layers.tokens, sizes[1] / layers.tokens, sizes[2] / layers.tokens


def _resident_bytes(layers: LayerProfile, row: RunRow, config: PipelineConfig) -> float:
    """Return the larger of two moments: the loss, and the end of the backward pass.

    At the loss all kept activations and a chunk of logits are there and no gradient; at
    the end all gradients and one layer. Weights and 8-bit state always are.
    """
    tokens = row.batch * row.seq_len
    boundaries, one, every = _per_token(layers)
    kept = every if row.system.endswith("no-recompute") else boundaries + one
    chunk = settings_for(config, row.accelerator).executor.loss_chunk_tokens
    logits = CHUNK_LOGITS_BYTES * min(chunk, tokens) * layers.vocab_size
    master = config.optimizer.master
    state = bytes_per_parameter(master, eight_bit=True, gradient_bytes=0)
    count = sum(part.num_parameters for part in part_specs(layers))
    gradients = count * ITEMSIZE[layers.dtype]
    return count * state + max(kept * tokens + logits, gradients + one * tokens)


def _zero3_bytes(layers: LayerProfile, row: RunRow) -> float:
    """Return checkpoints, a layer on its way back, logits, weights and buffers."""
    tokens = row.batch * row.seq_len
    boundaries, one, _ = _per_token(layers)
    logits = FULL_LOGITS_BYTES * layers.vocab_size
    if row.system.endswith("liger"):
        logits = 0
    parts = part_specs(layers)
    widest = max(part.weight_bytes for part in parts if part.kind == "layer")
    ends = max(part.weight_bytes for part in parts if part.kind != "layer")
    gathered = GATHERED_LAYERS * (widest + ends)
    count = sum(part.num_parameters for part in parts)
    buffers = min(count, LIVE_PARAMETERS) + 2 * min(count, BUCKET_GRADIENTS)
    gathered += buffers * ITEMSIZE[layers.dtype]
    return (boundaries + EAGER_SLACK * one + logits) * tokens + gathered
