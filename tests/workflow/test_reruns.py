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


def of(accelerator, part, **values):
    """Return one changed setting of a sheet id as words of a command."""
    return ("--config", "accelerators=" + json.dumps({accelerator: {part: values}}))


def test_settings_of_another_machine_reach_its_predictions_only(finished):
    jobs = finished.planned(*SMOKE, *of("h200", "budgets", gpu_cap="80GiB"))
    assert jobs["predict"] == 1
    measured = {"train", "train_quality", "derive_instance", "nvme_instance", "solve"}
    assert not measured & set(jobs)


@pytest.mark.parametrize(
    ("part", "mine", "other"),
    [("throughput", "train", "train_quality"), ("quality", "train_quality", "train")],
)
def test_the_steps_of_a_purpose_run_that_purpose_alone(finished, part, mine, other):
    jobs = finished.planned(*SMOKE, *of("cpu", part, num_steps=4))
    assert mine in jobs
    assert not {other, "derive_instance", "predict", "profile_layers"} & set(jobs)


@pytest.mark.parametrize(
    ("part", "values", "profiles"),
    [
        ("executor", {"dtype": "bfloat16"}, {"profile_hardware", "profile_layers"}),
        ("executor", {"micro_batch_tokens": 256}, {"profile_layers"}),
        ("executor", {"prefetch_distance": 2}, set()),
        ("budgets", {"gpu_cap": "40MiB"}, {"profile_hardware", "profile_layers"}),
    ],
)
def test_what_a_profile_was_measured_with_measures_again(
    finished, part, values, profiles
):
    jobs = finished.planned(*SMOKE, *of("cpu", part, **values))
    assert {name for name in jobs if name.startswith("profile_")} == profiles
    assert jobs["derive_instance"] == jobs["train"] == 2


def test_the_effective_config_is_kept_with_the_results(finished):
    kept = json.loads((finished.folder / "results" / "config.json").read_text())
    assert kept["runs"] == "config/runs-smoke.tsv"
    assert kept["solver"]["time_limit_s"] == 60


def test_a_setting_that_no_stage_uses_runs_nothing(finished):
    assert finished.planned(*SMOKE, "--config", "wandb=offline") == {}


def changed_sheet(finished, change):
    """Write a changed run sheet; return the words that choose it."""
    path = finished.folder / "changed.tsv"
    sheet = finished.folder / "config" / "runs-smoke.tsv"
    path.write_text(change(sheet.read_text()))
    return ("--config", "runs=changed.tsv")


@pytest.mark.parametrize(
    ("old", "new", "profiled"),
    [
        ("megatrain\t3B-mini\tQwen2.5-3B\t2", "megatrain\t3B-mini\tQwen2.5-3B\t4", 0),
        ("megatrain\t3B-mini\tQwen2.5-3B\t2", "megatrain\t3B-mini\tQwen2.5-7B\t2", 0),
        ("\t256\t", "\t128\t", 1),
    ],
)
def test_a_changed_row_runs_alone(finished, old, new, profiled):
    words = changed_sheet(finished, lambda text: text.replace(old, new))
    jobs = finished.planned(*SMOKE, *words)
    assert jobs.get("profile_layers", 0) == profiled
    assert jobs["train"] == (2 if profiled else 1)


# Last: these leave other tables to be made again.
@pytest.mark.parametrize(
    ("target", "table"),
    [
        pytest.param("results/table3.csv", "table3", marks=pytest.mark.slow),
        ("results/table3/3B.csv", "table3_scale"),
    ],
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


def test_a_system_without_a_plan_runs_again_under_another_cap(finished):
    line = "cpu\t3B\tresident\t3B-mini\tQwen2.5-3B\t2\t256\ttrue\tfalse\tfalse\n"
    target = "results/table3/3B.csv"
    words = changed_sheet(finished, lambda text: text + line)
    made = finished.snakemake("--cores", "2", *SMOKE, target, *words)
    assert made.returncode == 0, made.stdout
    record = "results/runs/cpu/3B/resident/record.json"
    assert finished.planned(*SMOKE, record, *words) == {}
    cap = of("cpu", "budgets", gpu_cap="40MiB")
    assert finished.planned(*SMOKE, record, *words, cap[1])["train"] == 1
