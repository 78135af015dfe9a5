"""Profiles that nobody measured: the estimator's machine and model as contracts.

Layer times follow from FLOPs and one sustained rate, so that an estimate goes through
the same derivation, program and simulator as a measured run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
)
from lazytrain.records import (
    DiskRates,
    HardwareProfile,
    LayerCost,
    LayerProfile,
    LinkRates,
    Provenance,
)
from lazytrain.schedule.shapes import ModelShape

BF16_BYTES = 2
Order = Literal["layer-major", "batch-major", "auto"]


@dataclass(frozen=True)
class Machine:
    """Capacities in bytes, rates in bytes per second, compute in FLOP/s.

    ``flops`` is what a layer sustains, not what the data sheet promises.
    """

    gpu_memory_bytes: int
    cpu_memory_bytes: int
    nvme_bytes: int
    h2d: float
    d2h: float
    nvme_read: float
    nvme_write: float
    flops: float
    optimizer_parameters_per_s: float


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how the step is cut."""

    batch: int
    seq_len: int
    micro_batch_tokens: int = 16384
    optimizer: Literal["hybrid_adamw_8bit", "cpu_adamw_8bit", "adamw"] = (
        "hybrid_adamw_8bit"
    )
    state_home: Literal["cpu", "nvme", "auto"] = "cpu"
    order: Order = "layer-major"


_NOWHERE = Provenance(
    commit="",
    dirty=False,
    command="estimate",
    started="",
    hostname_sha256="",
    device="estimate",
    cpu="",
    cores=1,
    memory_bytes=0,
    versions={},
)


def hardware_of(machine: Machine) -> HardwareProfile:
    """Return the machine as a profile; nothing in it was measured."""
    return HardwareProfile(
        accelerator="estimate",
        device="estimate",
        gpu_memory_bytes=machine.gpu_memory_bytes,
        gpu_cap_bytes=machine.gpu_memory_bytes,
        host_memory_bytes=machine.cpu_memory_bytes,
        disk_free_bytes=machine.nvme_bytes,
        link=LinkRates(
            h2d=machine.h2d,
            d2h=machine.d2h,
            h2d_together=machine.h2d,
            d2h_together=machine.d2h,
        ),
        disk=DiskRates(
            write=machine.nvme_write, read=machine.nvme_read, depth=1, direct=True
        ),
        optimizer_parameters_per_s={
            name: machine.optimizer_parameters_per_s
            for name in ("fp32", "hybrid", "8bit")
        },
        threads=1,
        matmul_flops_per_s=machine.flops,
        provenance=_NOWHERE,
    )


def layers_of(shape: ModelShape, machine: Machine, job: Job) -> LayerProfile:
    """Return layer costs by counting FLOPs and bytes, for the job's own tokens."""
    tokens = job.batch * job.seq_len
    costs = tuple(
        _cost(shape, kind, machine, tokens, job.seq_len) for kind in shape.layers
    )
    head = shape.vocab * shape.hidden
    return LayerProfile(
        accelerator="estimate",
        scale=shape.name,
        model=shape.name,
        dtype="bfloat16",
        body="compile",
        tokens=tokens,
        seq_len=job.seq_len,
        layer_types=shape.layer_types,
        layers=costs,
        embedding_parameters=shape.embedding_parameters,
        head_parameters=shape.head_parameters,
        tied=shape.tied,
        hidden_size=shape.hidden,
        vocab_size=shape.vocab,
        loss_s=6 * head * tokens / machine.flops,
        embedding_s=0.0,
        provenance=_NOWHERE,
    )


def _cost(
    shape: ModelShape, kind: str, machine: Machine, tokens: int, seq_len: int
) -> LayerCost:
    """Return one layer type's cost: forward 1, re-forward 1, backward 2."""
    layer = shape.layers[kind]
    # Causal attention: half of seq_len keys for scores and for values, 2 FLOPs each.
    per_token = 2 * layer.active_parameters + 2 * seq_len * layer.attention
    forward = per_token * tokens / machine.flops
    return LayerCost(
        layer_type=kind,
        num_parameters=layer.parameters,
        weight_bytes=layer.parameters * BF16_BYTES,
        boundary_bytes=tokens * shape.hidden * BF16_BYTES,
        forward_s=forward,
        backward_s=3 * forward,
        # What autograd keeps, and a quarter more for what the backward makes of it.
        workspace_bytes=tokens * layer.kept_elements * BF16_BYTES * 5 // 4,
        levels=(),
    )


def row_of(shape: ModelShape, job: Job) -> RunRow:
    """Return the job as a row of a run sheet."""
    return RunRow(
        accelerator="estimate",
        scale="estimate",
        system="lazytrain",
        model=shape.name,
        stands_for=shape.name,
        batch=job.batch,
        seq_len=job.seq_len,
    )


def config_of(job: Job) -> PipelineConfig:
    """Return the job as a configuration."""
    purpose = Purpose(num_steps=1, warmup_steps=0, learning_rate=1e-5)
    settings = AcceleratorSettings(
        executor=ExecutorSettings(
            body="compile",
            dtype="bfloat16",
            micro_batch_tokens=job.micro_batch_tokens,
            order=job.order,
        ),
        budgets=Budgets(),
        throughput=purpose,
        quality=purpose,
    )
    return PipelineConfig(
        accelerators={"estimate": settings},
        optimizer=OptimizerSettings(type=job.optimizer, state_home=job.state_home),
    )
