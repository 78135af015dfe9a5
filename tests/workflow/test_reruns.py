"""What runs again after a change: no more and no less than depends on it."""

import json

import pytest

pytestmark = pytest.mark.workflow
SMOKE = ("--configfile=config/smoke.yaml",)


@pytest.fixture
def edited(finished):
    """Return a function that edits a module; every edit is undone afterwards."""
    before = {}

    def edit(name, change):
        path = finished.package / name
        before.setdefault(path, path.read_text())
        path.write_text(change(path.read_text()))

    yield edit
    for path, text in before.items():
        path.write_text(text)


def test_a_finished_workflow_has_nothing_to_do(finished):
    assert finished.planned(*SMOKE) == {}


def test_deleting_a_trained_models_record_trains_and_evaluates_it_again(finished):
    folder = finished.folder / "results/quality/cpu/3B/lazytrain"
    text = (folder / "record.json").read_text()
    (folder / "record.json").unlink()
    jobs = finished.planned(*SMOKE, "results/table4.csv")
    (folder / "record.json").write_text(text)
    assert jobs == {"train_quality": 1, "evaluate": 1, "table4": 1}


def test_comments_layout_and_docstrings_change_nothing(finished, edited):
    for name in ("schedule/plan.py", "optim/adamw.py", "report/tables.py"):
        edited(
            name, lambda text: text.replace('"""', '"""Reworded: ', 1) + "\n\n# why\n"
        )
    assert finished.planned(*SMOKE) == {}


def test_a_change_of_the_planner_plans_and_trains_again(finished, edited):
    edited("schedule/plan.py", lambda text: text + "\nCHANGED = 1\n")
    jobs = finished.planned(*SMOKE)
    assert jobs["solve"] == jobs["check"] == 2
    assert jobs["train"] == 2
    assert "profile_layers" not in jobs
    assert "split_data" not in jobs


def test_a_change_of_the_report_makes_the_tables_again(finished, edited):
    edited("report/frames.py", lambda text: text + "\nCHANGED = 1\n")
    jobs = finished.planned(*SMOKE)
    assert {"table2", "table3", "table4", "table5", "compare"} <= set(jobs)
    assert not {"train", "train_quality", "solve", "evaluate"} & set(jobs)


def test_a_change_of_the_evaluation_does_not_train_again(finished, edited):
    edited("evaluate/exact_match.py", lambda text: text + "\nCHANGED = 1\n")
    jobs = finished.planned(*SMOKE)
    assert jobs["evaluate"] == 1
    assert not {"train", "train_quality", "solve"} & set(jobs)


def test_a_compiled_kernel_counts_as_code(finished):
    source = finished.package / "optim" / "csrc" / "planted.h"
    source.write_text("#define PLANTED 1\n")
    jobs = finished.planned(*SMOKE)
    source.unlink()
    assert jobs["train"] == 2


def test_a_changed_setting_reaches_the_rules_that_use_it(finished):
    jobs = finished.planned(*SMOKE, "--config", 'solver={"time_limit_s": 7}')
    assert jobs["solve"] == 2
    assert "profile_layers" not in jobs
    assert "split_data" not in jobs


def test_the_effective_config_is_kept_with_the_results(finished):
    kept = json.loads((finished.folder / "results" / "config.json").read_text())
    assert kept["runs"] == "config/runs-smoke.tsv"
    assert kept["solver"]["time_limit_s"] == 60


def test_a_setting_that_no_stage_uses_runs_nothing(finished):
    assert finished.planned(*SMOKE, "--config", "wandb=offline") == {}


# Last: these two leave other tables to be made again.
@pytest.mark.parametrize(
    ("target", "table"),
    [("results/table3.csv", "table3"), ("results/table3/3B.csv", "table3_scale")],
)
def test_deleting_one_record_runs_that_run_alone(finished, target, table):
    made = finished.snakemake("--cores", "2", *SMOKE, target)
    assert made.returncode == 0, made.stdout
    (finished.folder / "results/runs/cpu/3B/megatrain/record.json").unlink()
    assert finished.planned(*SMOKE, target) == {"train": 1, table: 1}
    done = finished.snakemake("--cores", "2", *SMOKE, target)
    assert "system=megatrain" in done.stdout
    assert "system=lazytrain" not in done.stdout
    assert finished.planned(*SMOKE, target) == {}
