"""MegaTrain's step added up by hand: bytes, passes and rates of an invented machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import hardware_profile, layer_profile

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow, load_yaml
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.baseline import (
    baseline_host_bytes,
    whole_bytes,
    whole_level,
)
from lazytrain.schedule.baseline_step import (
    EAGER,
    NORM_S_PER_PARAMETER,
    step_parts,
    update_bytes,
)
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Instance

ROOT = Path(__file__).parents[3]
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
NUM_LAYERS, BATCH, SCALE = 36, 192, 6  # profiled on 32 sequences
EVERY_FOURTH = [i % 4 == 0 for i in range(NUM_LAYERS + 1)]


@pytest.fixture(scope="module")
def hardware() -> HardwareProfile:
    return hardware_profile()


@pytest.fixture(scope="module")
def layers() -> LayerProfile:
    return layer_profile()


def problem(hardware: HardwareProfile, layers: LayerProfile, system: str) -> Instance:
    """Return the planning problem of a row at 3B."""
    row = RunRow(
        system=system,
        scale="3B",
        accelerator="h200",
        model="Qwen2.5-3B",
        stands_for="Qwen2.5-3B",
        batch=BATCH,
        seq_len=1024,
    )
    return derive_instance(hardware, layers, row, CONFIG)


def parts_of(
    hardware: HardwareProfile,
    layers: LayerProfile,
    system: str,
    kept: list[bool] = EVERY_FOURTH,
) -> dict[str, float]:
    """Return the parts of a row's step."""
    instance = problem(hardware, layers, system)
    return step_parts(instance, layers, hardware, system, kept)


@pytest.mark.parametrize(
    ("system", "forwards"),
    [("megatrain", 3), ("megatrain-hybrid8bit", 3), ("megatrain-single-recompute", 2)],
)
def test_compute_is_the_passes_and_the_copies_of_the_ends(
    hardware: HardwareProfile, layers: LayerProfile, system: str, forwards: int
) -> None:
    cost = layers.layers[0]
    # No copy is longer than a pass here, and a backward has twice its products.
    assert cost.weight_bytes / hardware.link.h2d_together < cost.forward_s * SCALE
    passes = EAGER * NUM_LAYERS * SCALE * cost.forward_s * (forwards + 2)
    turn = SCALE * (EAGER * layers.loss_s + layers.embedding_s)
    # Tied: the table lies in one part, the final norm in the other.
    ends = 2 * (layers.embedding_parameters + layers.head_parameters)
    copies = ends / hardware.link.h2d + ends / hardware.link.d2h
    found = parts_of(hardware, layers, system)["forward_backward"]
    assert found == pytest.approx(passes + turn + copies)


def test_a_plan_replays_what_it_omits_but_the_last_of_a_block(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    forward = EAGER * SCALE * layers.layers[0].forward_s

    def seconds(system: str, kept: list[bool] = EVERY_FOURTH) -> float:
        return parts_of(hardware, layers, system, kept)["forward_backward"]

    single = seconds("megatrain-single-recompute")
    everything = [True] * (NUM_LAYERS + 1)
    assert seconds("megatrain-milp", everything) == pytest.approx(single)
    planned = seconds("megatrain-milp")
    assert planned - single == pytest.approx(forward * NUM_LAYERS * 3 / 4)


def test_a_slow_link_sets_the_pace_of_a_pass(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    slow = hardware.link.model_copy(update={"h2d_together": 1e8})
    machine = hardware.model_copy(update={"link": slow})
    copy = layers.layers[0].weight_bytes / 1e8
    found = parts_of(machine, layers, "megatrain")["forward_backward"]
    turn = SCALE * (EAGER * layers.loss_s + layers.embedding_s)
    assert found == pytest.approx(3 * NUM_LAYERS * copy + turn, rel=0.01)


def test_the_host_follows_its_bytes(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    count = sum(p.num_parameters for p in problem(hardware, layers, "megatrain").parts)
    pass_s = 2 / (14 * 6e9)  # the 8-bit update moves 14 bytes at 6e9 a second
    theirs = parts_of(hardware, layers, "megatrain")
    assert theirs["clip"] == pytest.approx(count * (NORM_S_PER_PARAMETER + 2 * pass_s))
    assert theirs["optimizer"] == pytest.approx(count / 3e9)
    assert theirs["copy_weights"] == pytest.approx(3 * pass_s * count)
    ours = parts_of(hardware, layers, "megatrain-hybrid8bit")
    assert ours["clip"] == pytest.approx(1.34 * pass_s * count)
    assert ours["optimizer"] == pytest.approx(count / 3e9 * 21.76 / 25.76)
    assert ours["copy_weights"] == theirs["copy_weights"]


def test_an_update_reads_and_writes_all_but_the_gradient() -> None:
    assert update_bytes(2, 2, share=1.0) == 14
    assert update_bytes(2, 2, share=0.0) == 26
    assert update_bytes(0, 2, share=0.0) == 22
    assert update_bytes(0, 4, share=0.0) == 28


def test_a_layer_that_was_measured_eager_is_not_slowed_again(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    eager = layers.model_copy(update={"body": "eager"})
    fast, slow = (
        parts_of(hardware, profile, "megatrain")["forward_backward"]
        for profile in (eager, layers)
    )
    assert slow / fast == pytest.approx(EAGER, rel=0.01)


def test_a_level_that_keeps_some_is_not_taken_for_one_that_keeps_all(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    cost = layers.layers[0]
    some = cost.levels[1].model_copy(
        update={"name": "keep-0.2", "backward_s": 2.5 * cost.forward_s}
    )
    partly = cost.model_copy(update={"levels": (cost.levels[0], some)})
    assert whole_level(cost) == cost.levels[1]
    assert whole_level(partly) is None
    assert whole_bytes(cost) == cost.levels[1].kept_bytes
    assert whole_bytes(partly) == cost.workspace_bytes
    profile = layers.model_copy(update={"layers": (partly,)})
    found = parts_of(hardware, profile, "megatrain")
    # The invented layer's backward is two forwards, measured or not.
    assert found == parts_of(hardware, layers, "megatrain")


@pytest.mark.parametrize(
    ("system", "dtype", "expected"),
    [
        ("megatrain", "bfloat16", 14.0),
        ("megatrain-hybrid8bit", "bfloat16", 13.88),
        ("megatrain", "float32", 20.0),
    ],
)
def test_host_memory_is_three_copies_and_the_moments(
    hardware: HardwareProfile,
    layers: LayerProfile,
    system: str,
    dtype: str,
    expected: float,
) -> None:
    run = problem(hardware, layers, system).execution
    assert run is not None
    profile = layers.model_copy(update={"dtype": dtype})
    found = baseline_host_bytes(profile, run)
    assert found == pytest.approx(expected, abs=1e-3)


def test_every_system_of_the_family_has_all_parts(
    hardware: HardwareProfile, layers: LayerProfile
) -> None:
    for system in systems.names("megatrain"):
        parts = parts_of(hardware, layers, system)
        names = ["forward_backward", "clip", "optimizer", "copy_weights"]
        assert list(parts) == names
        assert min(parts.values()) > 0
