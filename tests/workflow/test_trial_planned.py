"""The real trial is planned from its own file, with everything that Table 4 needs."""

from __future__ import annotations


def test_the_trial_trains_and_evaluates_each_of_its_systems(workspace):
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
