"""A run's own process never outlives the process that started it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

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
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        assert parent.stderr.readline() == "ready\n"
        parent.send_signal(number)
        parent.wait(60)
        worker.wait(60)  # raises if it is still there
    assert not worker.is_running()
