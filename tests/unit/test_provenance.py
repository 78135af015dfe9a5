"""A record's command says what was run, not where a machine keeps its files."""

import sys
from datetime import UTC, datetime

import psutil

from lazytrain import provenance


def test_paths_are_relative_or_lose_the_folders_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.delenv(provenance.COMMAND, raising=False)
    monkeypatch.chdir(tmp_path)
    words = [
        "/opt/bin/lazytrain",
        "run",
        "--scale",
        "3B",
        f"--config={tmp_path}/config/config.yaml",
        "--out",
        "/root/out/h200/hardware.json",
        "--rows",
        f"{tmp_path}/rows.jsonl",
        "a b",
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert provenance.command_line() == (
        "lazytrain run --scale 3B --config=config/config.yaml --out h200/hardware.json"
        " --rows rows.jsonl 'a b'"
    )


def test_a_path_in_a_folder_of_results_begins_there(monkeypatch, tmp_path):
    monkeypatch.delenv(provenance.COMMAND, raising=False)
    monkeypatch.chdir(tmp_path)
    words = ["lazytrain", "--out", "/mnt/x/results/runs/h200-256g/14B/lazytrain"]
    monkeypatch.setattr(sys, "argv", words)
    expected = "lazytrain --out results/runs/h200-256g/14B/lazytrain"
    assert provenance.command_line() == expected


def test_a_record_made_late_says_when_its_process_began():
    began = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    made = datetime.fromisoformat(provenance.collect("cpu").started)
    assert abs((made - began).total_seconds()) <= 1
    assert made < datetime.now(UTC)


def test_the_commit_is_the_one_at_the_start(monkeypatch):
    provenance._commit.cache_clear()
    monkeypatch.setenv("LAZYTRAIN_COMMIT", "first")
    provenance.remember_code()
    monkeypatch.setenv("LAZYTRAIN_COMMIT", "second")
    try:
        assert provenance.collect("cpu").commit == "first"
    finally:
        provenance._commit.cache_clear()


def test_the_command_behind_a_worker_is_kept(monkeypatch):
    monkeypatch.setenv(provenance.COMMAND, "lazytrain run --scale 3B")
    assert provenance.command_line() == "lazytrain run --scale 3B"
