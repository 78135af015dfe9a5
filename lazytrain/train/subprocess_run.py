"""Running a request in a process of its own: ``python -m lazytrain.train.worker``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from lazytrain.errors import LazyTrainError
from lazytrain.provenance import COMMAND, command_line
from lazytrain.records import write

WORKER = "LAZYTRAIN_WORKER"
KILLED = -signal.SIGKILL


class RunFailed(LazyTrainError):
    """A run's own process ended with an error; its log says which."""


def is_worker() -> bool:
    """Whether this process was started for one run alone."""
    return os.environ.get(WORKER) == "1"


def start(path: Path, request: BaseModel) -> int:
    """Write a request, run a worker on it, and return the worker's exit code.

    Both outputs of the worker go to stderr: stdout is for results. Threads that wait
    must not spin, or they take the cores from the optimizer.
    """
    write(request, path)
    environment = os.environ | {
        WORKER: "1",
        COMMAND: command_line(),
        "OMP_WAIT_POLICY": "passive",
    }
    command = [sys.executable, "-m", "lazytrain.train.worker", str(path)]
    try:
        done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    finally:
        path.unlink(missing_ok=True)
    return done.returncode
