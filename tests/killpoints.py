"""A driver that kills training runs at chosen moments, and lets them resume.

``python killpoints.py REQUEST OUT POINT...`` runs the request of a file once per point
below ``OUT/<point>``, each time in a forked child that sends itself SIGKILL at its
point-th durable operation (a file synced, renamed, made or removed, or a step
launched), then resumes it until it ends. ``count`` in place of the points prints how
many operations an undisturbed run has. A point ``t<seconds>`` kills by the clock.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from lazytrain.executor.engine import StreamingEngine
from lazytrain.records import read
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_row


class Countdown:
    """Counts operations and kills its process at one of them."""

    def __init__(self, limit: int, folder: Path) -> None:
        self.limit = limit
        self.folder = str(folder)
        self.count = 0
        self.lock = threading.Lock()

    def watch(self, owner: object, name: str) -> None:
        """Count calls of a function; every second kill comes after its effect."""
        function = getattr(owner, name)

        def counted(*arguments, **options):
            is_path = isinstance(arguments[0], str | Path)
            if is_path and not str(arguments[0]).startswith(self.folder):
                return function(*arguments, **options)
            with self.lock:
                self.count += 1
                number = self.count
            if number == self.limit and self.limit % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*arguments, **options)
            finally:
                if number == self.limit:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, counted)

    def watch_all(self) -> None:
        """Count everything that leaves a trace on the disk, and every step."""
        for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
            self.watch(os, name)
        self.watch(shutil, "rmtree")
        self.watch(StreamingEngine, "train_step")


def child(request: RunRequest, limit: int, seconds: float = 0.0) -> int:
    """Run in a fork; return its exit status as ``os.waitpid`` gives it."""
    pid = os.fork()
    if pid == 0:
        countdown = Countdown(limit, request.out)
        countdown.watch_all()
        if seconds:

            def kill() -> None:
                time.sleep(seconds)
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=kill, daemon=True).start()
        try:
            run_row(request)
            if limit == 0 and not seconds:
                (request.out / "operations").write_text(str(countdown.count))
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(arguments: list[str]) -> int:
    """Run every point; return 0 if each was killed and then ended."""
    request = read(RunRequest, Path(arguments[0]))
    for point in arguments[2:]:
        out = Path(arguments[1]) / point
        given = request.model_copy(update={"out": out})
        if point == "count":
            status = child(given, 0)
        else:
            is_time = point.startswith("t")
            seconds = float(point[1:]) if is_time else 0.0
            status = child(given, 0 if is_time else int(point), seconds)
            if status == signal.SIGKILL:
                status = child(given, 0)
            elif not is_time:
                sys.stderr.write(f"point {point} was never reached\n")
                return 2
        if status != 0:
            sys.stderr.write(f"point {point} ended with {status}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
