"""A search for the largest batch begins around an estimate that runs bear out."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import layer_profile

from lazytrain import systems
from lazytrain.config import PipelineConfig, find_run, load_runs, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.records import HardwareProfile, LayerProfile, RunRecord, read
from lazytrain.schedule.baseline import ON_BASELINE
from lazytrain.schedule.parts import part_specs
from lazytrain.train.bracket import (
    RIVAL_SPREAD,
    Bracket,
    estimated,
    obstacle,
    rival_device_bytes,
    typed,
)
from lazytrain.units import GIB, MIB

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "results" / "recorded" / "h200"
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
ROWS = load_runs(ROOT / "config" / "runs.tsv")
HARDWARE = read(HardwareProfile, RECORDED / "profile" / "h200" / "hardware.json")


def layers_of(scale: str) -> LayerProfile:
    """Return the layers of a scale as a whole card runs them."""
    paths = sorted((RECORDED / "profile").glob(f"*/{scale}/layers.json"))
    (path,) = (path for path in paths if "cap24" not in path.parts[-3])
    return read(LayerProfile, path)


def row_of(scale: str, system: str, **changes):
    row = find_run(ROWS, "h200", scale, system)
    return row.model_copy(update=changes)


def rivals() -> list[RunRecord]:
    found = [read(RunRecord, path) for path in RECORDED.glob("runs/**/record.json")]
    ours = systems.names("lazytrain")
    return [run for run in found if run.status == "ok" and run.system not in ours]


def test_rivals_hold_on_the_device_what_is_expected_of_them():
    ratios = {}
    for run in rivals():
        row = find_run(ROWS, run.accelerator, run.scale, run.system)
        assert run.batch == row.batch
        expected = rival_device_bytes(HARDWARE, layers_of(run.scale), row, CONFIG)
        assert run.gpu_peak_bytes is not None
        ratios[row.accelerator, row.scale, row.system] = expected / run.gpu_peak_bytes
    families = {systems.BY_NAME[system].family for *_, system in ratios}
    assert families == {"megatrain", "resident", "deepspeed"}
    most = 1 + RIVAL_SPREAD
    for key, ratio in ratios.items():
        # A solved plan takes what is free; what is expected is the least it needs.
        least = 0.0 if key[-1] in ON_BASELINE else 1 / most
        assert least < ratio < most, (key, ratio)


def test_what_zero3_lets_stay_is_no_more_than_the_model_has():
    """Half of a billion elements in two buckets is not what a stand-in holds."""
    small = layer_profile(model="3B-mini", accelerator="cpu", micro_batch=1)
    row = row_of("3B", "zero3-offload", model="3B-mini", batch=1)
    cpu = HARDWARE.model_copy(update={"gpu_memory_bytes": 0})
    count = sum(part.num_parameters for part in part_specs(small))
    needed = rival_device_bytes(cpu, small, row, CONFIG)
    assert 3 * 2 * count < needed < 200 * MIB
    large = rival_device_bytes(cpu, layers_of("3B"), row_of("3B", row.system), CONFIG)
    assert large > 2 * (10**9 + 2 * 5 * 10**8)


@pytest.mark.parametrize(
    ("system", "scale"),
    [("lazytrain", "7B"), ("megatrain", "3B"), ("resident", "3B")],
)
def test_the_estimate_is_the_largest_batch_without_an_obstacle(system, scale):
    layers, row = layers_of(scale), row_of(scale, system)
    found = estimated(HARDWARE, layers, row, CONFIG)
    assert found.estimated is not None

    def reason(batch: int) -> str:
        return obstacle(HARDWARE, layers, row_of(scale, system, batch=batch), CONFIG)

    assert reason(found.estimated) == ""
    assert "GiB" in reason(found.estimated + 1)
    # What ran is in reach.
    assert row.batch <= found.high


def test_ours_is_looked_for_below_the_estimate_and_a_rival_around_it():
    ours = estimated(HARDWARE, layers_of("7B"), row_of("7B", "lazytrain"), CONFIG)
    assert (ours.low, ours.high) == (ours.estimated // 2, ours.estimated)
    rival = estimated(HARDWARE, layers_of("7B"), row_of("7B", "megatrain"), CONFIG)
    assert rival.low < 0.76 * rival.estimated
    assert rival.high >= 1.25 * rival.estimated


def test_a_cap_on_the_device_lowers_every_estimate():
    small = HARDWARE.model_copy(update={"gpu_cap_bytes": 70 * GIB})
    for system in ("zero3-offload", "zero3-offload-liger", "resident-no-recompute"):
        row = row_of("3B", system)
        most = [estimated(h, layers_of("3B"), row, CONFIG) for h in (small, HARDWARE)]
        assert 0 < most[0].estimated < most[1].estimated


def test_full_logits_cost_a_rival_batch():
    with_logits, without = (
        estimated(HARDWARE, layers_of("3B"), row_of("3B", system), CONFIG).estimated
        for system in ("zero3-offload", "zero3-offload-liger")
    )
    assert with_logits * 4 < without


def test_a_system_that_fits_nowhere_is_looked_for_at_one():
    tiny = HARDWARE.model_copy(update={"gpu_cap_bytes": GIB})
    found = estimated(tiny, layers_of("7B"), row_of("7B", "resident"), CONFIG)
    assert found == Bracket(1, 1, 0)


def test_a_typed_bracket_is_two_numbers():
    assert typed("2:8") == Bracket(2, 8)
    for text in ("", "8", "8:2", "0:4", "a:b", "²:4", "-1:4"):
        with pytest.raises(InvalidInput):
            typed(text)
