"""A record's command says what was run, not where a machine keeps its files."""

import sys

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


def test_the_command_behind_a_worker_is_kept(monkeypatch):
    monkeypatch.setenv(provenance.COMMAND, "lazytrain run --scale 3B")
    assert provenance.command_line() == "lazytrain run --scale 3B"
