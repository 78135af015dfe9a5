"""Profiles of an invented machine with round numbers, for tests only."""

from lazytrain.models.scales import model_config
from lazytrain.provenance import collect
from lazytrain.records import (
    DiskRates,
    HardwareProfile,
    LayerProfile,
    LinkRates,
    SaveLevel,
)
from lazytrain.schedule.assumed import Job, Machine, layers_of
from lazytrain.schedule.shapes import model_shape
from lazytrain.units import GIB

FLOPS = 6e14


def hardware_profile(accelerator="h200", **values):
    """A large card beside a host of 120 GiB."""
    given = {
        "accelerator": accelerator,
        "device": "NVIDIA H200",
        "gpu_memory_bytes": 139 * GIB,
        "gpu_cap_bytes": 139 * GIB,
        "host_memory_bytes": 120 * GIB,
        "disk_free_bytes": 50 * GIB,
        "link": LinkRates(h2d=5e10, d2h=5e10, h2d_together=4e10, d2h_together=4e10),
        "disk": DiskRates(write=2e9, read=1e9, depth=4, direct=True),
        "optimizer_parameters_per_s": {"fp32": 3e9, "hybrid": 3e9, "8bit": 6e9},
        "threads": 16,
        "matmul_flops_per_s": 7.9e14,
        "provenance": collect("cpu"),
    }
    return HardwareProfile(**given | values)


def layer_profile(scale="3B", model="Qwen2.5-3B", accelerator="h200", micro_batch=32):
    """Layers whose times follow from their FLOPs, with two save levels."""
    shape = model_shape(model_config(model).to_dict(), model)
    machine = Machine(1, 1, 1, 1.0, 1.0, 1.0, 1.0, FLOPS, 1.0)
    counted = layers_of(shape, machine, Job(micro_batch, 1024))
    layers = []
    for cost in counted.layers:
        levels = [
            SaveLevel(
                name=name,
                kept_bytes=cost.boundary_bytes * times,
                forward_s=cost.forward_s,
                backward_s=cost.forward_s * passes,
            )
            for name, times, passes in (("inputs", 1, 2.8), ("all", 20, 2.0))
        ]
        layers.append(
            cost.model_copy(
                update={"levels": tuple(levels), "backward_s": levels[0].backward_s}
            )
        )
    return LayerProfile.model_validate(
        counted.model_dump()
        | {
            "accelerator": accelerator,
            "scale": scale,
            "layers": layers,
            "provenance": collect("cpu"),
        }
    )
