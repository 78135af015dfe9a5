"""Small instances and profiles that the planner's unit tests share."""

from __future__ import annotations

import pytest

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
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
    SaveLevel,
)
from lazytrain.schedule.instance import Bandwidth, Budget, Costs, Instance
from lazytrain.units import MIB

PROVENANCE = Provenance(
    commit="c",
    dirty=False,
    command="test",
    started="2026-01-01T00:00:00",
    hostname_sha256="h",
    device="cpu",
    cpu="cpu",
    cores=2,
    memory_bytes=2**34,
    versions={},
)


@pytest.fixture
def make_instance():
    """Return a maker of instances: six equal layers, 100 B boundaries, 1 s windows."""

    def make(layers: int = 6, **changes: object) -> Instance:
        values: dict[str, object] = {
            "name": "small",
            "model": "toy",
            "layers": layers,
            "layer_types": ("layer",) * layers,
            "boundary_bytes": (100,) * (layers + 1),
            "rho_s": (1.0,) * layers,
            "window_write_s": (1.0,) * layers,
            "window_read_s": (2.0,) * layers,
            "mandatory_d2h_bytes": (0,) * layers,
            "mandatory_h2d_bytes": (0,) * layers,
            "bandwidth": Bandwidth(d2h=50, h2d=50, nvme_write=20, nvme_read=20),
            "budget_bytes": Budget(gpu=300, cpu=200, nvme=100),
        }
        return Instance.model_validate(values | changes)

    return make


@pytest.fixture
def make_timed(make_instance):
    """Return a maker of eight-layer instances: 1 s forward, 3 s backward, fast links.

    The embedding takes a quarter of a second each way, and so does the loss.
    """
    links = ("d2h", "h2d", "nvme_write", "nvme_read")

    def make(**changes: object) -> Instance:
        values: dict[str, object] = {
            "rho_s": (1.0,) * 8,
            "window_write_s": (1.0,) * 8,
            "window_read_s": (3.0,) * 8,
            "budget_bytes": Budget(gpu=900, cpu=0, nvme=0),
            "bandwidth": Bandwidth(**dict.fromkeys(links, 1e9)),
            "costs": Costs(embedding_s=0.5, turn_s=0.25),
        }
        return make_instance(layers=8, **values | changes)

    return make


@pytest.fixture
def hardware():
    """Return a CPU-only profile."""
    return HardwareProfile(
        accelerator="cpu",
        device="cpu",
        gpu_memory_bytes=0,
        gpu_cap_bytes=0,
        host_memory_bytes=16 * 2**30,
        disk_free_bytes=10**10,
        link=LinkRates(h2d=5e9, d2h=5e9, h2d_together=4e9, d2h_together=3e9),
        disk=DiskRates(write=5e8, read=1e9, depth=4, direct=True),
        optimizer_parameters_per_s={"fp32": 1e8, "hybrid": 9e7},
        threads=2,
        matmul_flops_per_s=1e11,
        provenance=PROVENANCE,
    )


@pytest.fixture
def layers():
    """Return the profile of an eight-layer model of two types, 2048 tokens."""
    costs = tuple(
        LayerCost(
            layer_type=kind,
            num_parameters=200_000,
            weight_bytes=800_000,
            boundary_bytes=2048 * 128 * 4,
            forward_s=seconds,
            backward_s=2 * seconds,
            workspace_bytes=4 * 2048 * 128 * 4,
            levels=(
                SaveLevel(
                    name="inputs",
                    kept_bytes=0,
                    forward_s=seconds,
                    backward_s=3 * seconds,
                ),
            ),
        )
        for kind, seconds in (("linear_attention", 0.01), ("full_attention", 0.02))
    )
    kinds = ("linear_attention",) * 3 + ("full_attention",)
    return LayerProfile(
        accelerator="cpu",
        scale="27B",
        model="27B-mini",
        dtype="float32",
        body="eager",
        tokens=2048,
        seq_len=128,
        layer_types=kinds * 2,
        layers=costs,
        embedding_parameters=384 * 128,
        head_parameters=384 * 128 + 128,
        tied=False,
        hidden_size=128,
        vocab_size=384,
        loss_s=0.01,
        embedding_s=0.001,
        provenance=PROVENANCE,
    )


@pytest.fixture
def make_config():
    """Return a maker of configurations with the given CPU budgets."""

    def make(gpu_cap: str = "64MiB", **budgets: str) -> PipelineConfig:
        purpose = Purpose(num_steps=2, warmup_steps=1, learning_rate=1e-3)
        settings = AcceleratorSettings(
            executor=ExecutorSettings(micro_batch_tokens=1024),
            budgets=Budgets(gpu_cap=gpu_cap, **budgets),
            throughput=purpose,
            quality=purpose,
        )
        return PipelineConfig(accelerators={"cpu": settings})

    return make


@pytest.fixture
def make_row():
    """Return a maker of rows of the run sheet."""

    def make(system: str = "lazytrain", batch: int = 32) -> RunRow:
        return RunRow(
            accelerator="cpu",
            scale="27B",
            system=system,
            model="27B-mini",
            stands_for="Qwen3.6-27B",
            batch=batch,
            seq_len=128,
        )

    return make


def with_executor(config, **changes):
    """Return a configuration with other executor settings."""
    settings = config.accelerators["cpu"]
    executor = settings.executor.model_copy(update=changes)
    settings = settings.model_copy(update={"executor": executor})
    return config.model_copy(update={"accelerators": {"cpu": settings}})


@pytest.fixture
def make_ordered(make_config):
    """Return a maker of configurations that ask for an order."""

    def make(order, gpu_cap="64MiB", tokens=1024, **budgets):
        config = make_config(gpu_cap, **budgets)
        return with_executor(config, order=order, micro_batch_tokens=tokens)

    return make


@pytest.fixture
def compiled(layers):
    """Return the profile with a compiled body that can keep everything.

    2048 tokens keep 3 MiB beyond the input and save the recomputation.
    """
    costs = tuple(
        cost.model_copy(
            update={
                "levels": (
                    SaveLevel(
                        name="inputs",
                        kept_bytes=MIB,
                        forward_s=cost.forward_s,
                        backward_s=3 * cost.forward_s,
                    ),
                    SaveLevel(
                        name="all",
                        kept_bytes=4 * MIB,
                        forward_s=cost.forward_s,
                        backward_s=2 * cost.forward_s,
                    ),
                )
            }
        )
        for cost in layers.layers
    )
    return layers.model_copy(update={"body": "compile", "layers": costs})
