"""Table 7 and Figure 4 of the machine at hand, or of one that was recorded."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ("results/table7_{}.csv", "results/figures/figure4_{}.svg")
CASE = {
    "nvme_instance": 1,
    "nvme_tighten": 2,
    "nvme_solve": 2,
    "nvme_table": 1,
    "nvme_figure": 1,
}

pytestmark = pytest.mark.workflow


def test_the_case_needs_profiles_and_no_training(workspace):
    jobs = workspace.planned(*(name.format("cpu") for name in TARGETS))
    jobs.pop("total", None)
    assert jobs == CASE | {"profile_hardware": 1, "profile_layers": 1}
    assert workspace.planned()["nvme_figure"] == 1
    smoke = workspace.planned("--configfile", "config/smoke.yaml")
    assert smoke["nvme_table"] == 1


def test_a_recorded_machine_needs_nothing_measured(workspace):
    kept = ROOT / "results" / "recorded" / "h200" / "profile" / "h200"
    folder = workspace.folder / "results" / "recorded" / "h200"
    shutil.copytree(kept, folder / "profile" / "h200")
    rows = ROOT / "results" / "recorded" / "h200" / "runs" / "h200" / "3B"
    shutil.copytree(rows, folder / "3B")
    words = (*(name.format("h200") for name in TARGETS), "--config")
    assert workspace.planned(*words, "records=recorded/h200") == CASE
    done = workspace.snakemake("-n", *words, "records=recorded/h200")
    assert "profile/h200/7B/layers.json" in done.stdout


def test_layers_without_their_machines_rates_make_no_case(workspace):
    """Such as 14B's, recorded on a host whose hardware.json was not."""
    kept = ROOT / "results" / "recorded" / "h200"
    folder = workspace.folder / "results" / "recorded" / "h200"
    shutil.copytree(kept / "profile", folder / "profile")
    shutil.copytree(kept / "runs" / "h200" / "3B", folder / "3B")
    done = workspace.snakemake("-n", "all", "--config", "records=recorded/h200")
    assert "results/table7_h200.csv" in done.stdout
    assert "results/table7_h200-256g.csv" not in done.stdout
