"""What Snakemake plans: both doors, partial targets, sheets, and clear refusals."""

import csv
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

from lazytrain.config import PipelineConfig, load_runs

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.workflow
RUNS = load_runs(ROOT / "config" / "runs.tsv")


def count(accelerator, **values):
    rows = [row for row in RUNS if row.accelerator == accelerator]
    return sum(all(getattr(row, k) == v for k, v in values.items()) for row in rows)


@pytest.mark.parametrize("door", ["Snakefile", "workflow/Snakefile"])
def test_the_plain_command_lists_every_training_job(workspace, door):
    jobs = workspace.planned(door=door)
    assert jobs["train"] == count("cpu") == 20
    assert jobs["train_quality"] == jobs["evaluate"] == count("cpu", table4=True)
    assert jobs["profile_layers"] == 4
    assert jobs["check"] == jobs["solve"]


def test_one_scale_runs_only_that_scale(workspace):
    done = workspace.snakemake("-n", "results/table3/7B.csv")
    assert done.returncode == 0, done.stdout
    jobs = workspace.planned("results/table3/7B.csv")
    assert jobs["train"] == count("cpu", scale="7B", table3=True)
    assert "train_quality" not in jobs
    for other in ("3B", "14B", "27B"):
        assert f"/{other}/" not in done.stdout


def test_the_choice_of_sheet_is_printed_once(workspace):
    done = workspace.snakemake("-n", "results/table3.csv")
    lines = [x for x in done.stdout.splitlines() if x.startswith("accelerator:")]
    assert len(lines) == 1
    assert "cpu" in lines[0]
    assert "--config accelerator=" in lines[0]


def test_measured_jobs_own_the_machine(workspace):
    done = workspace.snakemake("-n", "--cores", "2", "results/table3/3B.csv")
    blocks = done.stdout.split("\n\n")
    measured = [b for b in blocks if b.lstrip("[").find("rule train:") >= 0]
    assert measured
    assert all("gpu=1" in b and "threads: 2" in b for b in measured)


def test_another_sheet_is_planned_by_its_id(workspace):
    jobs = workspace.planned("--config", "accelerator=gpu80")
    assert jobs["train"] == count("gpu80")


def test_the_papers_protocol_is_planned(workspace):
    done = workspace.snakemake("-n", "--configfile", "config/paper.yaml")
    assert done.returncode == 0, done.stdout
    jobs = workspace.planned("--configfile", "config/paper.yaml")
    assert jobs["train_quality"] == jobs["evaluate"] == 12
    effective = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    update_config(effective, yaml.safe_load((ROOT / "config/paper.yaml").read_text()))
    settings = PipelineConfig.model_validate(effective)
    quality = settings.accelerators["gpu80"].quality
    assert (quality.num_steps, quality.eval_rows) == (3841, 10000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["colour=red"], "'colour'"),
        (["seed=blue"], "'seed' = 'blue'"),
        (["accelerator=tpu"], "'tpu'"),
        (["records=recorded/nowhere"], "recorded/nowhere"),
        (["data=/nonexistent"], "data = '/nonexistent': there is no such file"),
        (["data=rows.jsonl"], "data = 'rows.jsonl': there is no such file"),
        (["weights=/nope"], "weights = '/nope': there is no such file or folder"),
    ],
)
def test_a_wrong_key_or_value_is_named(workspace, words, said):
    done = workspace.snakemake("-n", "--config", *words)
    assert done.returncode != 0
    assert said in done.stdout


def test_a_sheet_with_a_wrong_cell_is_refused(workspace):
    sheet = workspace.folder / "runs.tsv"
    text = (ROOT / "config" / "runs.tsv").read_text().replace("\t8\t", "\tmany\t", 1)
    sheet.write_text(text)
    done = workspace.snakemake("-n", "--config", "runs=runs.tsv")
    assert done.returncode != 0
    assert "batch" in done.stdout
    assert "many" in done.stdout


def test_a_gpu_sheet_stops_before_the_first_job_without_a_gpu(workspace):
    done = workspace.snakemake("--cores", "1", "--config", "accelerator=gpu80")
    assert done.returncode != 0
    assert "no NVIDIA GPU" in done.stdout
    assert not (workspace.folder / "results").exists()


def test_without_a_compiler_the_reason_is_printed_before_any_job(workspace):
    tools = workspace.folder / "tools"
    tools.mkdir()
    for name in ("snakemake", "python"):
        (tools / name).symlink_to(ROOT / ".venv" / "bin" / name)
    workspace.environment["PATH"] = str(tools)
    done = workspace.snakemake("-n", "results/table3.csv")
    assert done.returncode == 0, done.stdout
    assert "zero3-offload: not_run, no C++ compiler" in done.stdout
    assert "install g++" in done.stdout


def test_lint_is_clean(workspace):
    done = workspace.snakemake("--lint")
    assert done.returncode == 0, done.stdout
    assert "good condition" in done.stdout


def test_rules_keep_their_shape():
    """Every rule that runs a command has log, conda and a fingerprint of its code."""
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        for rule in path.read_text().split("\nrule ")[1:]:
            name = rule.split(":")[0]
            assert "    log:" in rule, name
            assert "    conda:" in rule, name
            assert "lambda" not in rule, name
            if "lazytrain " in rule:
                assert "code=fingerprint(" in rule, name


def test_tables_from_recorded_runs_need_no_training(workspace):
    folder = workspace.folder / "results" / "recorded" / "h200"
    shutil.copytree(ROOT / "results/recorded/h200/runs/h200/3B", folder / "3B")
    jobs = workspace.planned("results/table3.csv", "--config", "records=recorded/h200")
    assert jobs == {"table3": 1, "predict": 1}


def test_every_system_of_a_scale_runs_the_same_model_and_length():
    with (ROOT / "config" / "runs.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for key in {(row["accelerator"], row["scale"]) for row in rows}:
        same = [row for row in rows if (row["accelerator"], row["scale"]) == key]
        assert len({(row["model"], row["seq_len"]) for row in same}) == 1, key


def test_git_does_not_track_what_the_workflow_makes():
    tracked = subprocess.run(
        ["git", "ls-files", "results", "schedules/solved", "logs", ".snakemake"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    kept = ("results/README.md", "results/recorded/")
    assert [name for name in tracked if not name.startswith(kept)] == []
