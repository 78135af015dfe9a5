"""Many rows of the run sheet by the pipeline's own commands, without Snakemake.

Every stage is a process of its own. Profiles come first, then all plans (several at
once, while nothing is measured), then the runs one after another: a measured run has
the machine to itself. A stage that fails or takes too long ends its own row only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

import lazytrain
from lazytrain import systems
from lazytrain.config import RunRow
from lazytrain.errors import InvalidInput
from lazytrain.records import RunRecord, read
from lazytrain.train.stages import (
    Folder,
    Stage,
    operator_stages,
    plan_stages,
    profile_stages,
    run_stage,
    split_stage,
)

PLANNERS = 4  # plans solved at once


@dataclass(frozen=True)
class Limits:
    """Seconds that a row's run may take, and all rows together; 0: no limit."""

    row_s: float = 0.0
    all_s: float = 0.0


@dataclass
class Sheet:
    """The rows of one call and what became of them.

    Attributes:
        folder: Where files lie.
        rows: Rows to measure, in this order.
        limits: When a run is killed, and when no other is started.
        failures: Why a row has no record, by system and scale.
    """

    folder: Folder
    rows: Sequence[RunRow]
    limits: Limits = field(default_factory=Limits)
    failures: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def measure(self) -> list[RunRow]:
        """Run everything that is not there yet; return the rows without a record."""
        with _ended_with_this_process():
            self._prepare()
            for row in self.rows:
                self._measure_row(row)
        return [row for row in self.rows if not run_stage(self.folder, row).is_done]

    def _prepare(self) -> None:
        """Divide the data, measure machine and models, and plan every row."""
        reason = self._perform([split_stage(self.folder)])
        if reason is not None:
            self.failures |= {name_of(row): reason for row in self.rows}
            return
        todo = [row for row in self.rows if not run_stage(self.folder, row).is_done]
        planned = [row for row in todo if systems.is_planned(row.system)]
        for scale in dict.fromkeys(row.scale for row in planned):
            same = [row for row in planned if row.scale == scale]
            reason = self._perform(profile_stages(self.folder, same[0]))
            if reason is not None:
                self.failures |= {name_of(row): reason for row in same}
        ready = [row for row in planned if name_of(row) not in self.failures]
        with ThreadPoolExecutor(PLANNERS) as pool:
            # A rival's row builds for itself, later, what could not be built here.
            pool.submit(self._perform, operator_stages(self.folder, todo))
            for row, why in zip(ready, pool.map(self._plan, ready), strict=True):
                if why is not None:
                    self.failures[name_of(row)] = why

    def _plan(self, row: RunRow) -> str | None:
        return self._perform(plan_stages(self.folder, row))

    def _measure_row(self, row: RunRow) -> None:
        """Run one row, unless its record is there, and say what came of it."""
        name, stage = name_of(row), run_stage(self.folder, row)
        start = time.monotonic()
        if not stage.is_done and name not in self.failures:
            reason = self._perform([stage])
            if reason is not None:
                self.failures[name] = reason
        seconds = time.monotonic() - start
        said = self.failures.get(name) or "failed"
        if stage.is_done:
            said = _said(stage.output)
        sys.stderr.write(f"sheet: {name}: {said} (wall {seconds:.1f} s)\n")

    def _perform(self, stages: Sequence[Stage]) -> str | None:
        """Run the stages that are not done; return why one failed, or None."""
        for stage in stages:
            if stage.is_done:
                continue
            limit = self._limit_s(is_run=stage.name == "run")
            if limit is not None and limit <= 0:
                return f"not started: all {self.limits.all_s:g} s are used up"
            reason = perform(stage, self.folder.log(stage), limit)
            if reason is not None:
                return reason
        return None

    def _limit_s(self, is_run: bool) -> float | None:
        """Return how long the next stage may take; None for ever."""
        limits = []
        if self.limits.all_s > 0:
            limits.append(self.limits.all_s - (time.monotonic() - self.started))
        if is_run and self.limits.row_s > 0:
            limits.append(self.limits.row_s)
        return min(limits, default=None)


def choose(
    sheet: Sequence[RunRow], accelerator: str, scales: Sequence[str], names: str
) -> list[RunRow]:
    """Return rows in the order asked for: by scale, then by system.

    Args:
        sheet: The run sheet.
        accelerator: Its sheet id.
        scales: Scales, in order.
        names: Systems separated by commas; empty: all of the sheet.

    Raises:
        InvalidInput: If the sheet has no such row.
    """
    chosen = []
    known = dict.fromkeys(r.scale for r in sheet if r.accelerator == accelerator)
    for scale in scales:
        if scale not in known:
            remedy = f"{accelerator} has: {', '.join(known) or 'no rows'}"
            raise InvalidInput("scale", scale, remedy)
        here = [r for r in sheet if (r.accelerator, r.scale) == (accelerator, scale)]
        found = {row.system: row for row in here}
        wanted = names.split(",") if names else list(found)
        for name in wanted:
            if name not in found:
                place = f"{accelerator}/{scale}/{name}"
                raise InvalidInput("run", place, f"the sheet has: {', '.join(found)}")
            chosen.append(found[name])
    return chosen


def perform(stage: Stage, log_file: Path, limit_s: float | None) -> str | None:
    """Run one stage in a process group of its own; return why it failed, or None.

    Its stderr goes to the log, as with the workflow's rules. At the limit the whole
    group is killed.
    """
    if _ENDING.is_set():
        return f"not started: {stage.name} was interrupted"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "lazytrain", *stage.words]
    with log_file.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, env=_environment(), stdout=file, stderr=file, process_group=0
        )
        _RUNNING.add(process.pid)
        try:
            # The signal may have come while the process was being started.
            code = process.wait(0 if _ENDING.is_set() else limit_s)
        except subprocess.TimeoutExpired:
            return f"killed: {stage.name} was over {limit_s:.0f} s (log {log_file})"
        finally:
            _kill_tree(process.pid)
            process.wait()
            _RUNNING.discard(process.pid)
    if code == 0:
        return None
    return f"{stage.name} ended with code {code}: {_last_line(log_file)}"


_RUNNING: set[int] = set()
_ENDING = threading.Event()
# How a user, a batch system and a closed terminal end a process.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _kill_tree(pid: int) -> None:
    """Kill a stage and all that it started; a build's compilers have own groups."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _ended_with_this_process() -> Iterator[None]:
    """Let no stage outlive this process when it is told to end."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        _ENDING.set()
        for pid in list(_RUNNING):
            _kill_tree(pid)
        sys.exit(128 + number)

    before = {name: signal.signal(name, end) for name in _SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        _ENDING.clear()


def _environment() -> dict[str, str]:
    """Return the environment of a stage: this very package, wherever it lies."""
    root = str(Path(lazytrain.__file__).resolve().parents[1])
    given = os.environ.get("PYTHONPATH")
    path = root if not given else f"{root}{os.pathsep}{given}"
    return os.environ | {"PYTHONPATH": path}


def _last_line(path: Path) -> str:
    """Return a log's last line that says something."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else f"no message (log {path})"


def name_of(row: RunRow) -> str:
    """Return a row's name."""
    return f"{row.accelerator}/{row.scale}/{row.system}"


def _said(path: Path) -> str:
    """Return what a record says; a file that is none does not stop the sheet."""
    try:
        return describe(read(RunRecord, path))
    except InvalidInput as error:
        return f"not a record: {error}"


def describe(record: RunRecord) -> str:
    """Return a record in one line."""
    if record.status != "ok" or record.step_s is None:
        return f"{record.status} at batch {record.batch}: {record.reason}"
    gpu, host = (
        (value or 0) / 1e9 for value in (record.gpu_peak_bytes, record.host_peak_bytes)
    )
    return (
        f"ok, {record.tflops or 0:.1f} TFLOPS, {record.tokens_per_s or 0:.0f} tokens/s,"
        f" step {record.step_s:.2f} s, GPU {gpu:.1f} GB, host {host:.1f} GB"
    )
