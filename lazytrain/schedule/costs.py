"""Measured seconds and rates, scaled from the profiled tokens to the batch."""

from __future__ import annotations

from lazytrain.records import HardwareProfile, LayerCost, LayerProfile
from lazytrain.schedule.instance import Bandwidth, Costs, Execution, LevelCost
from lazytrain.schedule.memory import streamed_bytes_per_parameter
from lazytrain.schedule.parts import cost_of


def step_costs(
    hardware: HardwareProfile, layers: LayerProfile, run: Execution, scale: float
) -> Costs:
    """Return compute times scaled to the batch, and the optimizer's rate."""
    types = [cost_of(layers, kind) for kind in layers.layer_types]
    state, rates = streamed_bytes_per_parameter(run), bandwidth_of(hardware)
    moves = bool(run.state_on_nvme)
    return Costs(
        forward_s=tuple(cost.forward_s * scale for cost in types),
        backward_s=tuple(_backward_s(cost, run.save_level) * scale for cost in types),
        embedding_s=layers.embedding_s * scale,
        turn_s=layers.loss_s * scale,
        optimizer_parameters_per_s=optimizer_rate(hardware, run.optimizer),
        state_read_s=state / rates.nvme_read if moves else 0.0,
        state_write_s=state / rates.nvme_write if moves else 0.0,
    )


def level_costs(
    layers: LayerProfile, run: Execution, scale: float
) -> dict[str, tuple[LevelCost, ...]]:
    """Return each layer type's save levels: bytes of a wave, seconds of the batch.

    Only a compiled body can be told what to keep, and only our own systems ask.
    """
    if run.body != "compile" or run.save_level != "inputs":
        return {}
    wave = run.wave_rows * run.seq_len / layers.tokens
    return {
        cost.layer_type: tuple(
            LevelCost(
                name=level.name,
                kept_bytes=int(max(0, level.kept_bytes - cost.boundary_bytes) * wave),
                step_s=(level.forward_s + level.backward_s) * scale,
            )
            for level in cost.levels
        )
        for cost in layers.layers
    }


def _backward_s(cost: LayerCost, level: str) -> float:
    """Return backward seconds at a save level, the layer's re-forward included."""
    for candidate in cost.levels:
        if candidate.name == level:
            return candidate.backward_s
    return cost.backward_s


def bandwidth_of(hardware: HardwareProfile) -> Bandwidth:
    """Return rates with both directions busy; a missing disk gets one byte a second."""
    link, disk = hardware.link, hardware.disk
    return Bandwidth(
        d2h=link.d2h_together,
        h2d=link.h2d_together,
        nvme_write=max(disk.write, 1.0),
        nvme_read=max(disk.read, 1.0),
    )


def at_least(
    compute_s: tuple[float, ...], weight_bytes: tuple[int, ...], rate: float
) -> tuple[float, ...]:
    """Return windows as long as the slower of compute and weight streaming."""
    return tuple(
        max(seconds, size / rate)
        for seconds, size in zip(compute_s, weight_bytes, strict=True)
    )


def optimizer_rate(hardware: HardwareProfile, optimizer: str) -> float:
    """Return the measured update rate of an optimizer's state format, 0 if unknown."""
    names = {"hybrid_adamw_8bit": "hybrid", "cpu_adamw_8bit": "8bit"}
    rates = hardware.optimizer_parameters_per_s
    for name in (optimizer, names.get(optimizer, "fp32")):
        if name in rates:
            return rates[name]
    return min(rates.values(), default=0.0)
