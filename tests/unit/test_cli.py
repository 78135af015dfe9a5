"""The console command: lists its stages, loads one at a time, errs in one line."""

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from lazytrain.cli import COMMANDS, app
from lazytrain.errors import InvalidInput, MissingExtra, OutOfMemory

LAZYTRAIN = Path(sys.executable).with_name("lazytrain")


def run(*words):
    return subprocess.run(
        [LAZYTRAIN, *words], capture_output=True, text=True, check=False, timeout=120
    )


def test_help_names_every_stage_without_loading_one():
    done = run("--help")
    assert done.returncode == 0
    for name in ("data", "profile", "instance", "solve", "check", "run", "report"):
        assert name in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_listed_command_exists(name):
    module = importlib.import_module(f"lazytrain.commands.{COMMANDS[name]}")
    assert name in typer.main.get_group(module.app).commands


def test_loading_the_commands_loads_no_heavy_library():
    code = (
        "import sys, importlib\n"
        "from lazytrain.cli import COMMANDS\n"
        "for name in set(COMMANDS.values()):\n"
        "    importlib.import_module(f'lazytrain.commands.{name}')\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'pyscipopt', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_users_error_is_one_line_and_exit_code_2(tmp_path):
    done = run("check", str(tmp_path / "no-plan.json"), str(tmp_path / "no.json"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("lazytrain: ")
    assert "does not exist" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch", "0"), ("--limit", "-4"), ("--max-new-tokens", "-1")],
)
def test_evaluate_refuses_numbers_without_sense(tmp_path, option, value):
    out = tmp_path / "eval.json"
    done = run("evaluate", "--weights", str(tmp_path), "--out", str(out), option, value)
    assert done.returncode == 2
    assert option in done.stderr


def test_an_unknown_command_is_refused():
    done = run("trian")
    assert done.returncode == 2
    assert "trian" in done.stderr


def test_an_error_that_is_no_users_is_not_swallowed(monkeypatch):
    def fail(**_options):
        raise ZeroDivisionError

    monkeypatch.setattr("lazytrain.cli.root", fail)
    with pytest.raises(ZeroDivisionError):
        app()


@pytest.mark.parametrize(
    ("number", "shown"),
    [(errno.ENOSPC, "No space left"), (errno.EISDIR, "Is a directory")],
)
def test_a_full_disk_or_a_wrong_path_is_one_line(monkeypatch, capsys, number, shown):
    def fail(**_options):
        raise OSError(number, os.strerror(number), "out.json")

    monkeypatch.setattr("lazytrain.cli.root", fail)
    with pytest.raises(SystemExit, match="2"):
        app()
    assert capsys.readouterr().err.startswith(f"lazytrain: out.json: {shown}")


def test_an_error_of_the_system_that_is_no_users_is_not_swallowed(monkeypatch):
    def fail(**_options):
        raise BrokenPipeError(errno.EPIPE, "pipe")

    monkeypatch.setattr("lazytrain.cli.root", fail)
    with pytest.raises(BrokenPipeError):
        app()


def test_errors_name_field_value_and_remedy():
    assert (
        str(InvalidInput("batch", 0, "use at least 1")) == "batch = 0: use at least 1"
    )
    assert "lazytrain[gds]" in str(MissingExtra("gds", "no kvikio"))
    error = OutOfMemory("host", 1_000_000, "lower the batch")
    assert (error.tier, error.requested_bytes) == ("host", 1_000_000)
    assert "1,000,000 B" in str(error)
