"""Where no schedule fits: every command goes on, and the run's record says why."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from measured import hardware_profile, layer_profile

from lazytrain.records import RunRecord, read, write
from lazytrain.schedule.no_plan import NoPlan

ROOT = Path(__file__).parents[3]


def lazytrain(folder, *words):
    command = [sys.executable, "-m", "lazytrain", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path):
    """A working folder whose card holds nothing, and a small data set."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    cpu = config["accelerators"]["cpu"]
    cpu["throughput"] |= {"num_steps": 1, "warmup_steps": 0}
    cpu["budgets"]["gpu_cap"] = "2MiB"
    config["synthetic"]["num_questions"] = 60
    config["runs"] = str(tmp_path / "runs.tsv")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(ROOT / "config" / "runs.tsv", tmp_path / "runs.tsv")
    write(hardware_profile("cpu"), tmp_path / "hardware.json")
    layers = layer_profile("3B", "3B-mini", "cpu", micro_batch=2)
    write(layers.model_copy(update={"dtype": "float32"}), tmp_path / "layers.json")
    return tmp_path


def row_words(system):
    words = ["--config", "config.yaml", "--accelerator", "cpu", "--scale", "3B"]
    return [*words, "--system", system]


def planned(folder, system):
    """Pose, solve and check one row as the workflow does."""
    done = lazytrain(
        folder,
        *("instance", *row_words(system), "--hardware", "hardware.json"),
        *("--layers", "layers.json", "--allow-none", "--out", "instance.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "no schedule fits" in done.stderr
    solve = ("solve", "instance.json", "--allow-none", "--out", "plan.json")
    check = ("check", "plan.json", "instance.json", "--out", "check.json")
    for words in (solve, check):
        done = lazytrain(folder, *words)
        assert done.returncode == 0, done.stderr
    note = read(NoPlan, folder / "check.json")
    assert "a step needs" in note.reason
    return note


def test_the_record_says_why_nothing_ran(folder):
    note = planned(folder, "lazytrain")
    split = ("data", "split", "--config", "config.yaml")
    split += ("--out", "split.json", "--rows", "rows.jsonl")
    assert lazytrain(folder, *split).returncode == 0
    for system, status in (("lazytrain", "oom"), ("megatrain", "ok")):
        done = lazytrain(
            folder,
            *("run", *row_words(system), "--split", "split.json"),
            *("--rows", "rows.jsonl", "--plan", "plan.json", "--out", system),
        )
        assert done.returncode == 0, done.stderr
        record = read(RunRecord, folder / system / "record.json")
        # The fixed schedule of a rival is no plan of ours: it finds its own limit.
        assert record.status == status
        assert ((record.reason or "").endswith(note.reason)) == (status == "oom")


def test_a_person_who_asks_is_told_by_the_exit_code(folder):
    done = lazytrain(
        folder,
        *("instance", *row_words("lazytrain"), "--hardware", "hardware.json"),
        *("--layers", "layers.json", "--out", "instance.json"),
    )
    assert done.returncode == 2
    assert "a step needs" in done.stderr
    assert not (folder / "instance.json").exists()
