"""Profiles of machines that were not measured, scaled from one that was.

Capacities and link rates of such a machine are published figures, each with its source;
its layers cost what they cost on the measured card, times the ratio of the two cards'
matrix rates. Nothing made here is a measurement, and none of it enters a measured cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from lazytrain.config import Budgets
from lazytrain.profile.accelerator import base_of, cap_bytes
from lazytrain.records import (
    Contract,
    DiskRates,
    HardwareProfile,
    LayerCost,
    LayerProfile,
    LinkRates,
    read,
)
from lazytrain.schedule.shapes import ModelShape
from lazytrain.units import parse_bytes


class PublishedMachine(Contract):
    """``config/hardware/*.json``: a machine as its maker and the paper describe it."""

    name: str
    device: str = Field(description="as the driver calls the card")
    accelerators: tuple[str, ...] = Field(description="sheet ids that it stands for")
    gpu_memory_bytes: int
    peak_flops_per_s: float = Field(gt=0, description="dense bf16")
    host_memory_bytes: int
    link_bytes_per_s: float = Field(gt=0, description="one direction")
    disk_free_bytes: int
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    sources: dict[str, str]


@dataclass(frozen=True)
class Target:
    """A machine to predict for, and what the prediction rests on."""

    hardware: HardwareProfile
    name: str
    basis: str


def load_machines(folder: Path) -> list[PublishedMachine]:
    """Read the published machines of a folder."""
    return [read(PublishedMachine, path) for path in sorted(folder.glob("*.json"))]


def target_for(
    accelerator: str,
    budgets: Budgets,
    measured: Sequence[HardwareProfile],
    machines: Sequence[PublishedMachine],
) -> Target | None:
    """Return the machine behind a sheet id: measured, its twin, or published.

    A twin is the same card under another cap or beside another host.
    """
    for profile in measured:
        if profile.accelerator == accelerator:
            return Target(profile, profile.device, "measured machine")
    for profile in measured:
        if base_of(profile.accelerator) == base_of(accelerator):
            twin = _twin(profile, accelerator, budgets)
            return Target(twin, profile.device, f"machine of {profile.accelerator}")
    for machine in machines:
        if accelerator in machine.accelerators and measured:
            profile = published_profile(machine, accelerator, measured[0], machines)
            return Target(profile, machine.name, "published figures")
    return None


def _twin(
    profile: HardwareProfile, accelerator: str, budgets: Budgets
) -> HardwareProfile:
    """Return a measured profile under another cap, or with a configured host."""
    cap = cap_bytes(accelerator) or profile.gpu_memory_bytes
    host = profile.host_memory_bytes
    if budgets.host_capacity != "auto":
        host = parse_bytes(budgets.host_capacity, "host_capacity")
    return profile.model_copy(
        update={
            "accelerator": accelerator,
            "gpu_cap_bytes": min(cap, profile.gpu_memory_bytes),
            "host_memory_bytes": host,
        }
    )


def published_profile(
    machine: PublishedMachine,
    accelerator: str,
    measured: HardwareProfile,
    machines: Sequence[PublishedMachine],
) -> HardwareProfile:
    """Return a published machine as a profile, at the measured card's efficiency."""
    link = machine.link_bytes_per_s
    return HardwareProfile(
        accelerator=accelerator,
        device=machine.name,
        gpu_memory_bytes=machine.gpu_memory_bytes,
        gpu_cap_bytes=machine.gpu_memory_bytes,
        host_memory_bytes=machine.host_memory_bytes,
        disk_free_bytes=machine.disk_free_bytes,
        link=LinkRates(h2d=link, d2h=link, h2d_together=link, d2h_together=link),
        disk=DiskRates(
            write=machine.disk_write_bytes_per_s,
            read=machine.disk_read_bytes_per_s,
            depth=measured.disk.depth,
            direct=True,
        ),
        optimizer_parameters_per_s=measured.optimizer_parameters_per_s,
        threads=measured.threads,
        matmul_flops_per_s=machine.peak_flops_per_s * efficiency(measured, machines),
        provenance=measured.provenance,
    )


def efficiency(
    measured: HardwareProfile, machines: Sequence[PublishedMachine]
) -> float:
    """Return the share of its published peak that the measured card reached."""
    for machine in machines:
        if machine.device == measured.device:
            return measured.matmul_flops_per_s / machine.peak_flops_per_s
    return 1.0


def scaled_layers(
    layers: LayerProfile, measured: HardwareProfile, target: HardwareProfile
) -> LayerProfile:
    """Return layer costs on the target: every second times the ratio of the rates."""
    factor = measured.matmul_flops_per_s / target.matmul_flops_per_s
    return layers.model_copy(
        update={
            "accelerator": target.accelerator,
            "layers": tuple(_scaled(cost, factor) for cost in layers.layers),
            "loss_s": layers.loss_s * factor,
            "embedding_s": layers.embedding_s * factor,
        }
    )


def resized(layers: LayerProfile, shape: ModelShape) -> LayerProfile:
    """Return the costs of another model whose layers are built alike.

    Seconds follow the parameters of a layer, kept bytes and workspace the width. A type
    of layer that was not measured takes after the first that was.
    """
    width = shape.hidden / layers.hidden_size
    known = {cost.layer_type: cost for cost in layers.layers}
    costs = []
    for kind, layer in shape.layers.items():
        base = known.get(kind, layers.layers[0])
        cost = _scaled(base, layer.parameters / base.num_parameters)
        levels = tuple(
            level.model_copy(update={"kept_bytes": int(level.kept_bytes * width)})
            for level in cost.levels
        )
        changes = {
            "layer_type": kind,
            "num_parameters": layer.parameters,
            "weight_bytes": layer.parameters * base.weight_bytes // base.num_parameters,
            "boundary_bytes": int(base.boundary_bytes * width),
            "workspace_bytes": int(base.workspace_bytes * width),
            "levels": levels,
        }
        costs.append(cost.model_copy(update=changes))
    head = shape.vocab * shape.hidden / (layers.vocab_size * layers.hidden_size)
    return layers.model_copy(
        update={
            "scale": shape.name,
            "model": shape.name,
            "layer_types": shape.layer_types,
            "layers": tuple(costs),
            "embedding_parameters": shape.embedding_parameters,
            "head_parameters": shape.head_parameters,
            "tied": shape.tied,
            "hidden_size": shape.hidden,
            "vocab_size": shape.vocab,
            "loss_s": layers.loss_s * head,
            "embedding_s": layers.embedding_s * width,
        }
    )


def _scaled(cost: LayerCost, factor: float) -> LayerCost:
    return cost.model_copy(
        update={
            "forward_s": cost.forward_s * factor,
            "backward_s": cost.backward_s * factor,
            "levels": tuple(
                level.model_copy(
                    update={
                        "forward_s": level.forward_s * factor,
                        "backward_s": level.backward_s * factor,
                    }
                )
                for level in cost.levels
            ),
        }
    )
