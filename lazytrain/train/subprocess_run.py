"""Running a request in a process of its own: ``python -m lazytrain.train.worker``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel

from lazytrain.errors import LazyTrainError
from lazytrain.provenance import COMMAND, command_line
from lazytrain.records import write

WORKER = "LAZYTRAIN_WORKER"
KILLED = -signal.SIGKILL


class RunFailed(LazyTrainError):
    """A run's own process ended with an error; its log says which."""


class RunTooLong(LazyTrainError):
    """A run's own process had not ended within its time, and was killed."""


def is_worker() -> bool:
    """Whether this process was started for one run alone."""
    return os.environ.get(WORKER) == "1"


def start(path: Path, request: BaseModel, limit_s: float | None = None) -> int:
    """Write a request, run a worker on it, and return the worker's exit code.

    Both outputs of the worker go to stderr: stdout is for results. Threads that wait
    must not spin, or they take the cores from the optimizer. The worker's input is a
    pipe that nobody writes to: it ends when this process does, however it ends.

    Raises:
        RunTooLong: If the worker has not ended after ``limit_s`` seconds; None: it may
            take as long as it needs.
    """
    write(request, path)
    environment = os.environ | {
        WORKER: "1",
        COMMAND: command_line(),
        "OMP_WAIT_POLICY": "passive",
    }
    command = [sys.executable, "-m", "lazytrain.train.worker", str(path)]
    try:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr
        ) as worker:
            try:
                return worker.wait(timeout=limit_s)
            except subprocess.TimeoutExpired as error:
                raise RunTooLong(f"not done after {limit_s:g} s, and killed") from error
            finally:
                worker.kill()
    finally:
        path.unlink(missing_ok=True)


def end_with_parent(stream: BinaryIO) -> None:
    """Kill this process once ``stream``, a pipe that its parent holds, has ended.

    A signal that ends the parent alone would otherwise leave a worker behind that
    keeps the device's memory.
    """

    def watch() -> None:
        # Not through the buffer: a thread that holds its lock at the end of a process
        # makes the interpreter abort.
        while os.read(stream.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
