"""One machine under two sheet ids: what is used again, and what is refused."""

from pathlib import Path

import pytest
from measured import hardware_profile, layer_profile

from lazytrain.config import PipelineConfig, load_runs, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.profile.reuse import reuse_hardware, reuse_layers
from lazytrain.records import sha256_file, write
from lazytrain.units import GIB

ROOT = Path(__file__).parents[3]
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
ROWS = load_runs(ROOT / "config" / "runs.tsv")


@pytest.fixture
def hardware(tmp_path):
    path = tmp_path / "hardware.json"
    write(hardware_profile(), path)
    return path


@pytest.fixture
def layers(tmp_path):
    path = tmp_path / "layers.json"
    write(layer_profile(), path)
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
    assert found.layers[0].forward_s > 0


def test_layers_of_another_model_or_device_are_refused(layers):
    with pytest.raises(InvalidInput, match="this run needs"):
        reuse_layers(layers, ROWS, "h200-cap70", "7B", CONFIG)
    with pytest.raises(InvalidInput, match="measure this one"):
        reuse_layers(layers, ROWS, "gpu80", "3B", CONFIG)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": 8192}, "8192"),
        ({"seq_len": 512}, "512"),
        ({"dtype": "float32"}, "float32"),
        ({"body": "eager"}, "eager"),
    ],
)
def test_layers_that_ran_otherwise_are_refused_by_what_differs(tmp_path, change, named):
    path = tmp_path / "layers.json"
    write(layer_profile().model_copy(update=change), path)
    with pytest.raises(InvalidInput, match=f"layers = .*{named}") as caught:
        reuse_layers(path, ROWS, "h200-cap70", "3B", CONFIG)
    needed = "needs ('Qwen2.5-3B', 1024, 32768, 'bfloat16', 'compile')"
    assert needed in str(caught.value)
