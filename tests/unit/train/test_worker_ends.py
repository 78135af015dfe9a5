"""A run's own process never outlives the process that started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import default_signals

from lazytrain.train import subprocess_run, worker

# Starts a worker as `subprocess_run.start` does, with a child that would run for long.
PARENT = """
import subprocess, sys
from pathlib import Path
from lazytrain.config import SolverSettings
from lazytrain.train import subprocess_run

started = subprocess.Popen


def sleeping(command, **options):
    worker = started([sys.executable, "-c", CHILD], **options)
    print(worker.pid, flush=True)
    return worker


CHILD = '''
import sys, time
from lazytrain.train.subprocess_run import end_with_parent
end_with_parent(sys.stdin.buffer)
sys.stderr.write("ready\\\\n")
sys.stderr.flush()
time.sleep(600)
'''
subprocess_run.subprocess.Popen = sleeping
subprocess_run.start(Path(sys.argv[1]), SolverSettings())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_worker_ends_with_its_parent(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Whatever ends the parent alone ends the worker too."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "request.json")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # a suite in the background ignores SIGINT
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert parent.stderr.readline() == "ready\n"
            parent.send_signal(number)
            parent.wait(120)
            child.wait(120)  # raises if it is still there
        finally:
            parent.kill()
    assert not child.is_running()


@pytest.mark.parametrize("by_parent", [True, False])
def test_a_worker_that_fails_says_so_by_its_code(
    by_parent: bool, tmp_path: Path
) -> None:
    """A request that cannot be read: one line and code 2, watched or not."""
    path = tmp_path / "request.json"
    path.write_text("{}")
    mark = {subprocess_run.WORKER: "1"} if by_parent else {}
    done = subprocess.Popen(
        [sys.executable, "-m", "lazytrain.train.worker", str(path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | mark,
    )
    assert done.stderr is not None
    said = done.stderr.read()  # its input stays open, as a living parent's does
    assert done.wait(120) == 2
    assert said.startswith("lazytrain: ")
    assert "Fatal" not in said


def test_the_watch_is_on_in_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker started by hand has no parent's pipe: its input may end at any time."""
    watched: list[object] = []
    monkeypatch.setattr(worker, "end_with_parent", watched.append)
    for mark, expected in (("1", 1), ("0", 0)):
        watched.clear()
        monkeypatch.setenv(subprocess_run.WORKER, mark)
        assert worker.main(["no-such-request.json"]) == 2
        assert len(watched) == expected
