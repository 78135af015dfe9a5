"""The real trial is planned from its own file, with everything that Table 4 needs."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_trial_trains_and_evaluates_each_of_its_systems(workspace):
    config = yaml.safe_load((ROOT / "config" / "trial.yaml").read_text())
    for key in ("data", "test_data", "weights"):
        path = workspace.folder / config[key]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    jobs = workspace.planned(
        "results/table4.csv",
        "results/figures/figure6.svg",
        "--configfile",
        "config/trial.yaml",
        "--config",
        "accelerator=cpu",
    )
    assert jobs["train_quality"] == jobs["evaluate"] == 4
    assert jobs["split_data"] == jobs["profile_layers"] == jobs["figure6"] == 1
    assert "train" not in jobs


def test_the_leak_needs_the_data_alone(workspace):
    jobs = workspace.planned("results/leak.csv")
    assert jobs == {"split_data": 1, "measure_leak": 1, "leak_table": 1}
