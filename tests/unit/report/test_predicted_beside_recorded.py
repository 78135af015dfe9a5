"""Predictions stay near the rows that were recorded, MegaTrain's part by part.

The tolerances are those that ``ARTIFACT.md`` states.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from lazytrain import systems
from lazytrain.config import PipelineConfig, find_run, load_runs, load_yaml
from lazytrain.profile.targets import load_machines, target_for
from lazytrain.records import HardwareProfile, LayerProfile, RunRecord, read
from lazytrain.report.predicted import predicted_rows
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.predict import Expected, predict
from lazytrain.schedule.simulate import timed_step_s
from lazytrain.units import GIB

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "results" / "recorded" / "h200"
CONFIG = load_yaml(PipelineConfig, ROOT / "config" / "config.yaml")
ROWS = load_runs(ROOT / "config" / "runs.tsv")
MACHINES = load_machines(ROOT / "config" / "hardware")
HARDWARE = [
    read(HardwareProfile, path)
    for path in sorted((FOLDER / "profile").glob("*/hardware.json"))
]
# By sheet id and scale: a row under a small cap runs fewer tokens at a time.
PROFILES = {
    (path.parts[-3], path.parts[-2]): read(LayerProfile, path)
    for path in sorted((FOLDER / "profile").glob("*/*/layers.json"))
}
# Its clip, update and copy all took 1.4 to 1.5 times as long as in the other rows of
# its size: something else was busy on the host.
DISTURBED = {("h200-256g", "14B", "megatrain-milp")}
HOST_PARTS = ("clip", "optimizer", "copy_weights")
# The profiles' host has 251 GiB. On the one with 125, our operator took 1.18 and 1.26
# of what they say in MegaTrain's step.
SMALL_HOST_BYTES = 200 * GIB
SLOW = 1.2


def recorded(family: systems.Family) -> list[RunRecord]:
    """Return a family's finished rows."""
    names = systems.names(family)
    runs = [read(RunRecord, p) for p in sorted(FOLDER.glob("runs/*/*/*/record.json"))]
    return [run for run in runs if run.status == "ok" and run.system in names]


def name_of(run: RunRecord) -> str:
    return "/".join(key_of(run))


def key_of(run: RunRecord) -> tuple[str, str, str]:
    return run.accelerator, run.scale, run.system


def layers_of(accelerator: str, scale: str) -> LayerProfile:
    """Return the layers of a scale, measured under a sheet id if they were."""
    others = [found for (_, of), found in PROFILES.items() if of == scale]
    return PROFILES.get((accelerator, scale)) or others[0]


def expected(run: RunRecord, layers: LayerProfile | None = None) -> Expected:
    """Return what the machine's profiles say of a recorded row."""
    row = find_run(ROWS, *key_of(run))
    budgets = CONFIG.accelerators[run.accelerator].budgets
    target = target_for(run.accelerator, budgets, HARDWARE, MACHINES)
    assert target is not None
    layers = layers or layers_of(run.accelerator, run.scale)
    found = predict(target.hardware, layers, row, CONFIG)
    assert found is not None
    return found


def update_s_against_profile(run: RunRecord) -> float:
    """Return how long an update took on a run's host against the profiles'."""
    return SLOW if (run.provenance.memory_bytes or 0) < SMALL_HOST_BYTES else 1.0


MEGATRAIN = recorded("megatrain")
OURS = recorded("lazytrain")


def test_every_kind_of_row_is_compared() -> None:
    assert {run.system for run in MEGATRAIN} == set(systems.names("megatrain"))
    assert {run.scale for run in MEGATRAIN} == {"3B", "7B", "14B"}
    assert len(OURS) > 10


@pytest.mark.parametrize("run", MEGATRAIN, ids=name_of)
def test_each_part_of_megatrains_step_is_near_the_recorded_one(run: RunRecord) -> None:
    found, measured = expected(run), run.breakdown_s
    assert found.breakdown_s.keys() == measured.keys()
    assert sum(found.breakdown_s.values()) == found.step_s == found.timed_s
    ratios = {name: found.breakdown_s[name] / measured[name] for name in measured}
    assert ratios["forward_backward"] == pytest.approx(1, abs=0.08)
    far = 0.35 if key_of(run) in DISTURBED else 0.25
    for name in HOST_PARTS:
        assert ratios[name] == pytest.approx(1, abs=far), name
    far = 0.15 if key_of(run) in DISTURBED else 0.06
    assert found.step_s == pytest.approx(run.step_s, rel=far)


def test_a_slow_host_is_as_slow_as_megatrains_rows_on_it_say() -> None:
    slow = [run for run in MEGATRAIN if update_s_against_profile(run) > 1]
    took = {}
    for run in slow:
        said = expected(run).breakdown_s["optimizer"]
        took[key_of(run)] = run.breakdown_s["optimizer"] / said
    assert len(took) > 5
    assert min(took.values()) > 1.05
    ours = [ratio for key, ratio in took.items() if key[-1] == "megatrain-hybrid8bit"]
    assert statistics.mean(ours) == pytest.approx(SLOW, abs=0.05)


@pytest.mark.parametrize("key", sorted(DISTURBED))
def test_a_disturbed_row_was_slow_in_all_that_the_host_does(
    key: tuple[str, str, str],
) -> None:
    (run,) = (run for run in MEGATRAIN if key_of(run) == key)
    others = [
        other.breakdown_s
        for other in MEGATRAIN
        if other.scale == run.scale and key_of(other) != key
    ]
    for name in ("optimizer", "copy_weights"):
        worst = max(breakdown[name] for breakdown in others)
        assert run.breakdown_s[name] > 1.2 * worst, name


@pytest.mark.parametrize(
    "run",
    [run for run in MEGATRAIN if run.system == "megatrain-hybrid8bit"],
    ids=name_of,
)
def test_the_hybrid_row_clips_and_updates_with_our_kernels(run: RunRecord) -> None:
    plain = run.model_copy(update={"system": "megatrain"})
    ours, theirs = expected(run).breakdown_s, expected(plain).breakdown_s
    assert ours["forward_backward"] == theirs["forward_backward"]
    assert ours["copy_weights"] == theirs["copy_weights"]
    # One read of the gradient by all threads, against one thread and a second pass.
    assert ours["clip"] < 0.1 * theirs["clip"]
    # The weight is the master: 22 bytes per parameter with fp32 moments and 10 with
    # 8-bit ones, where the profile's update, with a split master, moved 4 more.
    rate = HARDWARE[0].optimizer_parameters_per_s["hybrid"]
    moved = (0.98 * 22 + 0.02 * 10) / (0.98 * 26 + 0.02 * 14)
    assert ours["optimizer"] == pytest.approx(run.num_parameters / rate * moved)


def test_an_unmeasured_level_costs_no_second_forward() -> None:
    """14B's layers were measured up to a level that recomputes most of the forward."""
    layers = layers_of("h200-256g", "14B")
    (cost,) = layers.layers
    assert cost.levels[-1].name == "keep-0.2"
    assert cost.levels[-1].backward_s > 2.4 * cost.forward_s
    # Those of 7B, measured up to the level that keeps all, have a backward of 1.93.
    (wide,) = layers_of("h200", "7B").layers
    assert wide.levels[-1].name == "all"
    assert wide.levels[-1].backward_s / wide.forward_s == pytest.approx(2, rel=0.05)
    (run, *_) = (r for r in MEGATRAIN if r.scale == "14B")
    bare = cost.model_copy(update={"levels": cost.levels[:1]})
    without = layers.model_copy(update={"layers": (bare,)})
    assert expected(run, without).breakdown_s == expected(run).breakdown_s


@pytest.mark.parametrize("run", OURS, ids=name_of)
def test_our_timed_step_is_near_the_recorded_one(run: RunRecord) -> None:
    """With the update that no forward hides, once per timed row.

    Only a row that waits for its update shows how fast its own host updates.
    """
    place = Path(*key_of(run)).with_suffix(".json")
    plan = read(Plan, FOLDER / "schedules" / place)
    instance = read(Instance, FOLDER / "instances" / place)
    assert plan.prediction is not None
    costs = instance.costs
    rate = costs.optimizer_parameters_per_s / update_s_against_profile(run)
    own = costs.model_copy(update={"optimizer_parameters_per_s": rate})
    instance = instance.model_copy(update={"costs": own})
    timed = timed_step_s(plan, instance, run.num_steps - run.warmup_steps)
    assert timed > plan.prediction.step_s
    assert timed == pytest.approx(run.step_s, rel=0.06)
    assert timed < 1.02 * run.step_s


def test_the_table_has_the_timed_step() -> None:
    row = find_run(ROWS, "h200", "3B", "lazytrain-no-milp")
    (shown,) = predicted_rows([row], HARDWARE, [*PROFILES.values()], MACHINES, CONFIG)
    found = predict(HARDWARE[0], layers_of("h200", "3B"), row, CONFIG)
    assert found is not None
    assert found.timed_s is not None
    assert found.step_s is not None
    assert found.timed_s > found.step_s
    assert shown.predicted_step_s == f"{found.timed_s:.2f}"
