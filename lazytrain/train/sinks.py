"""Where a run's progress goes: a terminal, a log, ``steps.jsonl``, Weights & Biases.

The JSON lines are the record. W&B is a copy of them that may fail at any time without
stopping or slowing a run.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeRemainingColumn as RemainingColumn

from lazytrain.errors import is_disk_full
from lazytrain.records import StepRecord

WandbMode = Literal["disabled", "offline", "online"]
log = logging.getLogger(__name__)
LOG_EVERY_S = 10.0


class Sink(Protocol):
    """Takes each step as it becomes known."""

    def put(self, step: StepRecord) -> None:
        """Take one step."""
        ...

    def close(self, is_complete: bool) -> None:
        """Finish; ``is_complete`` is False after an interruption."""
        ...


def describe(step: StepRecord) -> str:
    """Return one step in a line of text."""
    parts = [f"loss {step.loss:.4f}", f"lr {step.learning_rate:.2e}"]
    if step.grad_norm is not None:
        parts.append(f"norm {step.grad_norm:.3f}")
    if step.step_s > 0:
        parts.append(f"{step.padded_tokens / step.step_s:,.0f} tok/s")
    if step.eval_loss is not None:
        parts.append(f"eval {step.eval_loss:.4f}")
    if step.skipped:
        parts.append("skipped")
    return "  ".join(parts)


class TerminalProgress:
    """A rich progress bar on stderr."""

    def __init__(self, num_steps: int, title: str) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(title, total=num_steps, note="")
        self._bar.start()

    def put(self, step: StepRecord) -> None:
        """Advance the bar."""
        self._bar.update(self._task, advance=1, note=describe(step))

    def close(self, is_complete: bool) -> None:
        """Leave the terminal as it was."""
        del is_complete
        self._bar.stop()


class LogProgress:
    """Plain lines on stderr: the first and last steps, and one every few seconds."""

    def __init__(self, num_steps: int, title: str) -> None:
        self._num_steps = num_steps
        self._title = title
        self._last = -math.inf

    def put(self, step: StepRecord) -> None:
        """Write a line if one is due."""
        now = time.monotonic()
        is_due = now - self._last >= LOG_EVERY_S or step.eval_loss is not None
        if is_due or step.step in (1, self._num_steps):
            self._last = now
            line = f"{self._title} {step.step}/{self._num_steps}  {describe(step)}\n"
            sys.stderr.write(line)
            sys.stderr.flush()

    def close(self, is_complete: bool) -> None:
        """Say so if the run was cut short."""
        if not is_complete:
            sys.stderr.write(f"{self._title}: interrupted\n")


def progress(num_steps: int, title: str) -> Sink:
    """Return a bar on a terminal, plain lines elsewhere."""
    kind = TerminalProgress if sys.stderr.isatty() else LogProgress
    return kind(num_steps, title)


class JsonLines:
    """``steps.jsonl``: whole lines under a temporary name, renamed when complete.

    Lines that find no room on the disk wait for some: they cost no run its weights.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_suffix(".partial.jsonl")
        self._file = self._partial.open("wb", buffering=0)
        self._waiting = b""
        self._is_told = False

    def put(self, step: StepRecord) -> None:
        """Append one line."""
        self._waiting += step.model_dump_json().encode() + b"\n"
        self._write()

    def close(self, is_complete: bool) -> None:
        """Give a complete file its name; an incomplete one keeps ``.partial``."""
        self._write()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._waiting:
            log.error("%s: the last steps found no room", self._partial)
        elif is_complete:
            self._partial.replace(self._path)

    def _write(self) -> None:
        """Write what waits, as far as there is room."""
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as error:
            if not is_disk_full(error):
                raise
            if not self._is_told:
                log.error("%s: no room; steps wait for some", self._partial)
            self._is_told = True


def _tracker_errors() -> tuple[type[Exception], ...]:
    """Return what a tracker may raise out of its network, disk and threads."""
    errors = (ImportError, OSError, RuntimeError, ValueError, TypeError)
    try:
        import wandb
    except ImportError:
        return errors
    return (*errors, wandb.Error)


class Wandb:
    """Weights & Biases, asked for by name; every failure is logged and forgotten."""

    def __init__(self, mode: WandbMode, title: str, folder: Path) -> None:
        self._run: Any = None
        try:
            import wandb

            self._run = wandb.init(
                project="lazytrain",
                name=title,
                mode=mode,
                dir=str(folder),
                settings=wandb.Settings(init_timeout=30, silent=True),
            )
        except _tracker_errors() as error:
            log.warning("W&B is off: %s", error)

    def put(self, step: StepRecord) -> None:
        """Log one step."""
        if self._run is None:
            return
        values = {
            name: value
            for name, value in step.model_dump(exclude={"breakdown_s"}).items()
            if value is not None
        }
        try:
            self._run.log(values, step=step.step)
        except _tracker_errors() as error:
            log.warning("W&B is off: %s", error)
            self._run = None

    def close(self, is_complete: bool) -> None:
        """Finish the tracked run."""
        if self._run is None:
            return
        try:
            self._run.finish(exit_code=0 if is_complete else 1)
        except _tracker_errors() as error:
            log.warning("W&B did not finish: %s", error)


class Sinks:
    """All sinks of a run, closed together whatever happens."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def __enter__(self) -> Sinks:
        """Return the sinks."""
        return self

    def put(self, step: StepRecord) -> None:
        """Hand a step to every sink."""
        for sink in self._sinks:
            sink.put(step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all; the files are complete only if nothing was raised."""
        del error, trace
        for sink in self._sinks:
            sink.close(kind is None)
