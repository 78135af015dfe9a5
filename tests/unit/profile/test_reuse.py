"""One machine under two sheet ids: what is used again, and what is refused."""

from pathlib import Path

import pytest

from lazytrain.config import PipelineConfig, load_runs, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.profile.reuse import reuse_hardware, reuse_layers
from lazytrain.provenance import collect
from lazytrain.records import (
    DiskRates,
    HardwareProfile,
    LayerCost,
    LayerProfile,
    LinkRates,
    SaveLevel,
    sha256_file,
    write,
)
from lazytrain.units import GIB

ROOT = Path(__file__).parents[3]
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
ROWS = load_runs(ROOT / "config" / "runs.tsv")


@pytest.fixture
def hardware(tmp_path):
    profile = HardwareProfile(
        accelerator="h200",
        device="NVIDIA H200",
        gpu_memory_bytes=139 * GIB,
        gpu_cap_bytes=139 * GIB,
        host_memory_bytes=120 * GIB,
        disk_free_bytes=50 * GIB,
        link=LinkRates(h2d=5e10, d2h=5e10, h2d_together=4e10, d2h_together=4e10),
        disk=DiskRates(write=2e9, read=1e9, depth=4, direct=True),
        optimizer_parameters_per_s={"fp32": 3e9},
        threads=16,
        matmul_flops_per_s=7.9e14,
        provenance=collect("h200"),
    )
    path = tmp_path / "hardware.json"
    write(profile, path)
    return path


@pytest.fixture
def layers(tmp_path):
    level = SaveLevel(name="inputs", kept_bytes=1, forward_s=0.1, backward_s=0.2)
    cost = LayerCost(
        layer_type="full_attention",
        num_parameters=10,
        weight_bytes=20,
        boundary_bytes=1,
        forward_s=0.1,
        backward_s=0.2,
        workspace_bytes=1,
        levels=(level,),
    )
    profile = LayerProfile(
        accelerator="h200",
        scale="3B",
        model="Qwen2.5-3B",
        dtype="bfloat16",
        body="compile",
        tokens=32 * 1024,
        seq_len=1024,
        layer_types=("full_attention",),
        layers=(cost,),
        embedding_parameters=1,
        head_parameters=1,
        tied=True,
        hidden_size=1,
        vocab_size=1,
        loss_s=0.1,
        embedding_s=0.1,
        provenance=collect("h200"),
    )
    path = tmp_path / "layers.json"
    write(profile, path)
    return path


def test_only_the_cap_differs(hardware):
    found = reuse_hardware(hardware, "h200-cap70", CONFIG)
    assert found.accelerator == "h200-cap70"
    assert found.gpu_cap_bytes == 70 * GIB
    assert found.gpu_memory_bytes == 139 * GIB
    assert found.provenance.made_from["measured"] == sha256_file(hardware)
    assert reuse_hardware(hardware, "h200", CONFIG).gpu_cap_bytes == 139 * GIB


@pytest.mark.parametrize(
    "accelerator", ["gpu80", "cpu", "h200-256g", "h200-256g-cap70"]
)
def test_another_machine_has_to_be_measured(hardware, accelerator):
    with pytest.raises(InvalidInput, match="measure this one"):
        reuse_hardware(hardware, accelerator, CONFIG)


def test_a_cap_above_the_card_is_refused(hardware):
    with pytest.raises(InvalidInput, match="the cap is above"):
        reuse_hardware(hardware, "h200-cap200", CONFIG)


def test_layers_cost_the_same_under_a_cap_and_on_another_host(layers):
    found = reuse_layers(layers, ROWS, "h200-cap70", "3B", CONFIG)
    assert found.accelerator == "h200-cap70"
    assert found.layers[0].forward_s == 0.1


def test_layers_of_another_model_or_device_are_refused(layers):
    with pytest.raises(InvalidInput, match="this run needs"):
        reuse_layers(layers, ROWS, "h200-cap70", "7B", CONFIG)
    with pytest.raises(InvalidInput, match="measure this one"):
        reuse_layers(layers, ROWS, "gpu80", "3B", CONFIG)
