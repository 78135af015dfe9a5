"""A run's directory goes with the run, however it ends, and with nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from processes import default_signals

from lazytrain.errors import InvalidInput
from lazytrain.tiers import run_folder
from lazytrain.tiers.run_folder import OWNER_FILE, PREFIX, RunFolder

PREAMBLE = """
import atexit, os, signal, sys, threading
from pathlib import Path
from lazytrain.tiers.run_folder import RunFolder
root = Path(sys.argv[1])
"""


def run(root, body):
    """Run a program that may open folders below ``root``."""
    program = PREAMBLE + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", program, str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=default_signals,
    )


def left(root):
    return sorted(entry.name for entry in root.iterdir())


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("folder.remove(); folder.remove()", 0),
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('a fault of the training')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGHUP)", -signal.SIGHUP),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_every_ending_removes_the_directory_and_keeps_its_code(tmp_path, ending, code):
    body = f"""
        folder = RunFolder(root)
        second = RunFolder(root)
        assert folder.path.is_dir() and len(list(root.iterdir())) == 2
        print("made", flush=True)
        {ending}
    """
    ended = run(tmp_path, body)
    assert ended.stdout == "made\n"
    assert ended.returncode == code
    assert left(tmp_path) == []


def test_a_handler_of_the_users_is_never_replaced(tmp_path):
    body = """
        def mine(number, frame):
            print("mine", flush=True)
            sys.exit(7)
        signal.signal(signal.SIGTERM, mine)
        folder = RunFolder(root)
        assert signal.getsignal(signal.SIGTERM) is mine
        os.kill(os.getpid(), signal.SIGTERM)
    """
    ended = run(tmp_path, body)
    assert (ended.returncode, ended.stdout) == (7, "mine\n")
    assert left(tmp_path) == []


def test_an_ignored_signal_stays_ignored(tmp_path):
    body = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        folder = RunFolder(root)
        os.kill(os.getpid(), signal.SIGTERM)
        assert folder.path.is_dir()
        print("alive")
    """
    ended = run(tmp_path, body)
    assert (ended.returncode, ended.stdout) == (0, "alive\n")
    assert left(tmp_path) == []


def test_another_thread_may_open_one(tmp_path):
    body = """
        made = []
        thread = threading.Thread(target=lambda: made.append(RunFolder(root)))
        thread.start(); thread.join()
        assert made[0].path.is_dir()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    ended = run(tmp_path, body)
    assert ended.returncode == 0, ended.stderr
    assert left(tmp_path) == []


def test_a_forked_child_leaves_its_parents_directory_alone(tmp_path):
    body = """
        folder = RunFolder(root)
        child = os.fork()
        if child == 0:
            folder.remove()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert folder.path.is_dir()
        print("kept")
    """
    ended = run(tmp_path, body)
    assert ended.stdout == "kept\n", ended.stderr
    assert left(tmp_path) == []


def test_the_owner_file_names_this_process(tmp_path):
    folder = RunFolder(tmp_path)
    owner = json.loads((folder.path / OWNER_FILE).read_text())
    assert folder.path.name.startswith(PREFIX)
    assert owner["pid"] == os.getpid()
    assert owner["start_ticks"] == run_folder.start_ticks(os.getpid())
    assert owner["boot_id"] == run_folder.boot_id()
    folder.remove()
    assert left(tmp_path) == []


def test_the_start_time_is_read_behind_any_command_name():
    name = "a) R 1 (b"
    body = f"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)
from lazytrain.tiers.run_folder import start_ticks
import os
print(start_ticks(os.getpid()))
"""
    ended = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=True
    )
    ours = run_folder.start_ticks(os.getpid())
    assert ours is not None
    assert int(ended.stdout) >= ours


def test_a_process_that_is_gone_has_no_start_time():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert run_folder.start_ticks(child.pid) is None


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="writable folder"):
        RunFolder(tmp_path / "file")
