"""From measured profiles and a row of the run sheet to the planner's instance."""

from __future__ import annotations

import math
from typing import Literal

from lazytrain import systems
from lazytrain.config import (
    AcceleratorSettings,
    ExecutorSettings,
    PipelineConfig,
    RunRow,
)
from lazytrain.errors import DoesNotFit, InvalidInput
from lazytrain.records import HardwareProfile, LayerCost, LayerProfile
from lazytrain.schedule.baseline import with_baseline_memory
from lazytrain.schedule.host_room import OURS, host_capacity, size_of, with_homes
from lazytrain.schedule.instance import (
    Bandwidth,
    Budget,
    Costs,
    Execution,
    Instance,
    LevelCost,
    Options,
    PartSpec,
)
from lazytrain.schedule.memory import (
    ModelSizes,
    boundary_bytes,
    device_bytes,
    host_bytes,
    streamed_bytes_per_parameter,
)
from lazytrain.schedule.staging import BOUNCE_BUFFERS
from lazytrain.schedule.state_home import disk_bytes, left_for_boundaries
from lazytrain.units import GIB, format_bytes, parse_bytes

ITEMSIZE = {"bfloat16": 2, "float32": 4}
# The planner's method by system; a system that has none uses the program.
METHODS = {system.name: system.method for system in systems.ALL if system.method}
# Systems whose plan is performed by the baseline's step.
ON_BASELINE = ("megatrain-milp",)
OPTIMIZERS = {system.name: system.optimizer for system in systems.ALL}
# The rest of a disk stays free for everything not modelled.
DISK_SHARE = 0.5


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
    settings = _settings(config, row)
    parts = part_specs(layers)
    run = execution(hardware, layers, row, config)
    sizes = model_sizes(layers, run)
    bounced = BOUNCE_BUFFERS * boundary_bytes(run, sizes)
    if run.order == "batch-major":
        bounced = 0
    run = with_homes(run, parts, config, row, hardware, bounced)
    budget, fixed = budgets(hardware, settings, parts, run, sizes)
    scale = row.batch * row.seq_len / layers.tokens
    times = _costs(hardware, layers, run, scale)
    forward, backward = times.forward_s, times.backward_s
    weights = _streamed_weights(parts, run)
    rates = left_for_boundaries(
        _bandwidth(hardware), fixed.nvme, sum(forward), sum(backward)
    )
    instance = Instance(
        name=f"{row.accelerator}/{row.scale}/{row.system}",
        model=row.model,
        layers=len(forward),
        layer_types=layers.layer_types,
        boundary_bytes=(boundary_bytes(run, sizes),) * (len(forward) + 1),
        rho_s=forward,
        window_write_s=_at_least(forward, weights, rates.h2d),
        window_read_s=_at_least(backward, weights, rates.h2d),
        mandatory_d2h_bytes=(0,) * len(forward),
        mandatory_h2d_bytes=weights,
        bandwidth=rates,
        budget_bytes=budget,
        **_tie_breaks(min(forward)),
        # A real step reads a boundary before the layer that needs it, and holds what
        # it recomputes; blocks beyond sqrt(L) would only hold more of it.
        max_block=max(8, math.ceil(math.sqrt(len(forward)))),
        options=Options(read_deadline="layer", transient=True, memory="static"),
        method=METHODS.get(row.system, "milp"),
        fixed_bytes=fixed,
        costs=times,
        levels=level_costs(layers, run, scale),
        parts=parts,
        execution=run,
    )
    if row.system in ON_BASELINE:
        return with_baseline_memory(instance, layers)
    return instance


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


def _costs(
    hardware: HardwareProfile, layers: LayerProfile, run: Execution, scale: float
) -> Costs:
    """Return compute times scaled to the batch, and the optimizer's rate."""
    types = [_cost(layers, kind) for kind in layers.layer_types]
    state, rates = streamed_bytes_per_parameter(run), _bandwidth(hardware)
    moves = bool(run.state_on_nvme)
    return Costs(
        forward_s=tuple(cost.forward_s * scale for cost in types),
        backward_s=tuple(_backward_s(cost, run.save_level) * scale for cost in types),
        embedding_s=layers.embedding_s * scale,
        turn_s=layers.loss_s * scale,
        optimizer_parameters_per_s=_optimizer_rate(hardware, run),
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


def _settings(config: PipelineConfig, row: RunRow) -> AcceleratorSettings:
    """Return the settings of the row's sheet id."""
    if row.accelerator not in config.accelerators:
        known = ", ".join(config.accelerators)
        raise InvalidInput("accelerator", row.accelerator, f"choose one of {known}")
    return config.accelerators[row.accelerator]


def execution(
    hardware: HardwareProfile, layers: LayerProfile, row: RunRow, config: PipelineConfig
) -> Execution:
    """Return how the row is to be run: the sheet, then the accelerator's settings."""
    settings = _settings(config, row).executor
    optimizer = config.optimizer
    kind = OPTIMIZERS.get(row.system) or optimizer.type
    master: Literal["fp32-split", "bf16", "bf16-stochastic", "fp32"] = optimizer.master
    if layers.dtype == "float32":
        master = "fp32"
    order = order_of(settings, row)
    return Execution(
        batch=row.batch,
        seq_len=row.seq_len,
        micro_batch=micro_batch(row.batch, row.seq_len, settings.micro_batch_tokens),
        order="batch-major" if order == "batch-major" else "layer-major",
        save_level=settings.save_level,
        body=layers.body,
        # Every wave uses every layer: streamed, the weights would cross once a wave.
        resident_weights=settings.resident_weights or order == "batch-major",
        prefetch_distance=settings.prefetch_distance,
        weight_slots=settings.weight_slots,
        grad_slots=settings.grad_slots,
        chunk_bytes=parse_bytes(settings.chunk_bytes, "executor.chunk_bytes"),
        loss_chunk_tokens=settings.loss_chunk_tokens,
        reserve_bytes=reserve_bytes(hardware),
        optimizer=kind,
        eight_bit_fraction=optimizer.eight_bit_fraction,
        master=master,
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


def part_specs(layers: LayerProfile) -> tuple[PartSpec, ...]:
    """Return embedding, layers and head in forward order, with ties."""
    itemsize = ITEMSIZE[layers.dtype]
    costs = [_cost(layers, kind) for kind in layers.layer_types]
    embedding = layers.embedding_parameters
    specs = [
        PartSpec(
            name="embedding",
            kind="embedding",
            num_parameters=embedding,
            weight_bytes=embedding * itemsize,
            gradient_bytes=embedding * itemsize,
        )
    ]
    specs += [
        PartSpec(
            name=f"layer.{i}",
            kind="layer",
            layer_type=cost.layer_type,
            num_parameters=cost.num_parameters,
            weight_bytes=cost.weight_bytes,
            gradient_bytes=cost.num_parameters * itemsize,
        )
        for i, cost in enumerate(costs)
    ]
    head = layers.head_parameters
    specs.append(
        PartSpec(
            name="head",
            kind="head",
            num_parameters=head,
            weight_bytes=head * itemsize,
            gradient_bytes=head * itemsize,
            tied_to="embedding" if layers.tied else None,
        )
    )
    return tuple(specs)


def model_sizes(layers: LayerProfile, run: Execution) -> ModelSizes:
    """Return the sizes at the run's micro-batch, scaled from the profiled tokens."""
    scale = run.micro_batch * run.seq_len / layers.tokens
    workspace = max(cost.workspace_bytes for cost in layers.layers)
    return ModelSizes(
        hidden=layers.hidden_size,
        vocab=layers.vocab_size,
        itemsize=ITEMSIZE[layers.dtype],
        workspace_bytes=math.ceil(workspace * scale),
    )


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
    texts = settings.budgets
    cap = size_of(texts.gpu_cap, hardware.gpu_cap_bytes, "budgets.gpu_cap")
    if cap <= 0:
        remedy = "the profile has no device memory; write a size, such as 64MiB"
        raise InvalidInput("budgets.gpu_cap", texts.gpu_cap, remedy)
    disk = int(hardware.disk_free_bytes * DISK_SHARE)
    state = disk_bytes(run, parts, disk)
    nvme = size_of(texts.nvme_activations, disk - state, "budgets.nvme_activations")
    boundary = boundary_bytes(run, sizes)
    if run.order == "batch-major":
        nvme = 0
    host = host_bytes(parts, run, boundary if nvme >= boundary else 0).total
    capacity = host_capacity(settings, hardware)
    cpu = size_of(
        texts.cpu_activations, max(0, capacity - host), "budgets.cpu_activations"
    )
    if run.order == "batch-major":
        cpu = 0
    device = device_bytes(parts, run, sizes, max(cpu, nvme) >= boundary)
    if device.total >= cap:
        raise DoesNotFit("budgets.gpu_cap", format_bytes(cap), _too_small(device))
    fixed = Budget(gpu=device.total, cpu=host, nvme=state)
    return Budget(gpu=cap - device.total, cpu=cpu, nvme=nvme), fixed


def _too_small(device: object) -> str:
    """Say what a step needs before any activation, largest first."""
    items = sorted(vars(device).items(), key=lambda item: -item[1])
    total = sum(size for _, size in items)
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in items[:4])
    return (
        f"a step needs {format_bytes(total)} before any activation ({largest}); raise "
        "the cap, or lower micro_batch_tokens, weight_slots, loss_chunk_tokens or batch"
    )


def _cost(layers: LayerProfile, kind: str) -> LayerCost:
    """Return the measured cost of a layer type."""
    for cost in layers.layers:
        if cost.layer_type == kind:
            return cost
    raise InvalidInput("layer_types", kind, "the profile has no cost for it")


def _backward_s(cost: LayerCost, level: str) -> float:
    """Return backward seconds at a save level, the layer's re-forward included."""
    for candidate in cost.levels:
        if candidate.name == level:
            return candidate.backward_s
    return cost.backward_s


def _bandwidth(hardware: HardwareProfile) -> Bandwidth:
    """Return rates with both directions busy; a missing disk gets one byte a second."""
    link, disk = hardware.link, hardware.disk
    return Bandwidth(
        d2h=link.d2h_together,
        h2d=link.h2d_together,
        nvme_write=max(disk.write, 1.0),
        nvme_read=max(disk.read, 1.0),
    )


def _at_least(
    compute_s: tuple[float, ...], weight_bytes: tuple[int, ...], rate: float
) -> tuple[float, ...]:
    """Return windows as long as the slower of compute and weight streaming."""
    return tuple(
        max(seconds, size / rate)
        for seconds, size in zip(compute_s, weight_bytes, strict=True)
    )


def _optimizer_rate(hardware: HardwareProfile, run: Execution) -> float:
    """Return the measured update rate of the run's state format, 0 if unknown."""
    names = {"hybrid_adamw_8bit": "hybrid", "cpu_adamw_8bit": "8bit"}
    rates = hardware.optimizer_parameters_per_s
    for name in (run.optimizer, names.get(run.optimizer, "fp32")):
        if name in rates:
            return rates[name]
    return min(rates.values(), default=0.0)
