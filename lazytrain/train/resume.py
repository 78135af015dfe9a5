"""Saving a run's checkpoints as it goes, and going on from one.

A resumed run takes the batches, the learning rates and the optimizer state that the
undisturbed run would have taken. The plan may be another one: it decides where things
lie and in which order they move, not what is computed.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.data.batches import Position
from lazytrain.errors import InvalidInput
from lazytrain.profile.hardware import settings_for
from lazytrain.records import StepRecord, canonical_json, sha256_text
from lazytrain.schedule.plan import Plan
from lazytrain.train import checkpoint, earlier
from lazytrain.train.checkpoint import (
    Broken,
    Checkpoint,
    Content,
    StreamPosition,
    TrainingState,
)
from lazytrain.train.course import (
    changed_settings,
    check_course,
    check_form,
    check_model,
    course_of,
)
from lazytrain.train.measure import nonfinite_at_end
from lazytrain.train.randomness import random_state, set_random_state
from lazytrain.train.request import Data, RunRequest
from lazytrain.train.schedule_lr import learning_rate
from lazytrain.train.source import Source
from lazytrain.train.weights_io import save_model_files

log = logging.getLogger(__name__)
FOLDER: Final = "checkpoints"
PLAN: Final = "plan.json"
REQUEST: Final = "request.json"
AUTO, NEVER = "auto", "never"
# Names that a run's files and folders have, with a dot before, while they are written.
LEFTOVERS: Final = (
    *("weights", "initial"),
    *("rows.jsonl", "split.json", "plan.json", "record.json", "eval.json"),
    "evaluations.jsonl",
)


# What an engine offers whose training can be saved and continued.
RESUMABLE: Final = ("optimizer_tensors", "load_training_state", "applied_steps")


def begin(request: RunRequest, source: Source) -> Checkpoint | None:
    """Return the checkpoint to go on from, and set an earlier run's results aside.

    Those of a run that is complete stay: going on from its end changes nothing.

    Raises:
        InvalidInput: If it cannot be gone on from as asked; nothing is moved then.
    """
    point = find(request)
    root, is_own = request.out / FOLDER, False
    if point is not None:
        check_course(request, source.tokenizer, point)
        check_model(source.config, point)
        check_form(request, point)
        is_own = point.folder.resolve().parent == root.resolve()
        if is_own and point.state.step == request.settings.num_steps:
            return point
    earlier.set_aside(request.out)
    if not is_own:
        earlier.set_aside(request.out, earlier.GATHERED)
    if request.resume == NEVER:
        earlier.set_aside(request.out, [FOLDER])
    return point


def find(request: RunRequest) -> Checkpoint | None:
    """Return the checkpoint that a run goes on from, verified; None starts anew.

    Raises:
        InvalidInput: If the one asked for is not whole, or checkpoints of an earlier
            run are in the way of a new one.
    """
    root = request.out / FOLDER
    _clear_leftovers(request.out)
    if request.resume == NEVER:
        if request.save_every and checkpoint.folders(root):
            remedy = "holds an earlier run; resume: auto, another out, or remove it"
            raise InvalidInput("resume = never, but out", str(root), remedy)
        return None
    if request.resume == AUTO:
        found, _ = checkpoint.newest(root)
        return found
    given = Path(request.resume)
    if (given / FOLDER).is_dir():
        given = given / FOLDER
    if checkpoint.folders(given):
        found, skipped = checkpoint.newest(given)
        if found is not None:
            return found
        raise InvalidInput("resume", str(given), "; ".join(skipped.values()))
    try:
        return checkpoint.open_whole(given)
    except Broken as error:
        remedy = f"is no whole checkpoint ({error}); give auto, never or another"
        raise InvalidInput("resume", str(given), remedy) from error


def _clear_leftovers(out: Path) -> None:
    """Remove what a killed process had half written."""
    for name in LEFTOVERS:
        for path in out.glob(f".{name}.*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def planning_sha256(row: RunRow, config: PipelineConfig) -> str:
    """Return a hash of everything that a plan is made from, but the machine."""
    settings = settings_for(config, row.accelerator)
    parts = (row, settings.executor, settings.budgets, config.optimizer, config.solver)
    return sha256_text("".join(canonical_json(part) for part in parts))


def reusable_plan(request: RunRequest, point: Checkpoint | None) -> str | None:
    """Return the plan of the checkpoint to go on from, if it fits what is asked.

    A plan solved anew from new measurements may sum in another order; the saved one
    gives the undisturbed run's numbers bit for bit.

    Args:
        request: The run.
        point: The checkpoint, verified as :func:`find` returns it.
    """
    if point is None:
        return None
    wanted = planning_sha256(request.row, request.config)
    return point.document(PLAN) if point.state.planning_sha256 == wanted else None


def position_of(point: Checkpoint | None) -> Position | None:
    """Return where the stream of batches goes on."""
    return Position(**point.state.position.model_dump()) if point else None


@dataclass
class Saver:
    """Saves checkpoints of a run; also one of its sinks, to know all its steps.

    Attributes:
        request: The run.
        engine: What trains.
        source: Its model's configuration and tokenizer.
        data: Its stream of batches, read for its position.
        plan: What it runs along.
        steps: Records of all steps so far, an earlier process's included.
    """

    request: RunRequest
    engine: Any
    source: Source
    data: Data
    plan: Plan | None
    steps: list[StepRecord]

    def __post_init__(self) -> None:
        """Refuse to save what could not be resumed.

        Raises:
            InvalidInput: If the system has no state to save.
        """
        wants = self.request.save_every or self.request.resume != NEVER
        if wants and not all(hasattr(self.engine, name) for name in RESUMABLE):
            system = self.request.row.system
            remedy = f"{system} cannot be saved; set save_every: 0, resume: never"
            raise InvalidInput("save_every", self.request.save_every, remedy)

    def put(self, step: StepRecord) -> None:
        """Take one step."""
        self.steps.append(step)

    def close(self, is_complete: bool) -> None:
        """Nothing is left to do: checkpoints are whole at any time."""
        del is_complete

    def is_due(self, step: int) -> bool:
        """Say whether a checkpoint follows step ``step``, counted from 1."""
        every = self.request.save_every
        is_last = step == self.request.settings.num_steps
        return bool(every) and (step % every == 0 or is_last)

    def after_step(self, step: int) -> None:
        """Save if it is due; a disk that is full costs the checkpoint, not the run."""
        if not self.is_due(step) or self._is_in_doubt(step):
            return
        content = self._content(step)
        root = self.request.out / FOLDER
        try:
            path = checkpoint.save(root, content, self.request.keep_checkpoints)
        except OSError as error:
            log.error("no checkpoint at step %d: %s", step, error)
        else:
            log.info("checkpoint %s", path)

    def _is_in_doubt(self, step: int) -> bool:
        """Say whether a checkpoint would replace one from before a divergence.

        One step that is not finite may be its batch's fault; more are the weights'.
        """
        is_last = step == self.request.settings.num_steps
        in_row = nonfinite_at_end(self.steps)
        if is_last or in_row < 2:
            return False
        log.warning("no checkpoint at step %d: %d steps not finite", step, in_row)
        return True

    def _content(self, step: int) -> Content:
        documents = {REQUEST: self.request.model_dump_json(indent=1) + "\n"}
        if self.plan is not None:
            documents[PLAN] = self.plan.model_dump_json(indent=1) + "\n"
        weights = dict(self.engine.named_weights())
        return Content(
            state=self._state(step),
            weights=weights,
            optimizer=self.engine.optimizer_tensors(),
            steps=tuple(self.steps),
            documents=documents,
            save_model=lambda folder: save_model_files(
                folder, self.source, next(iter(weights.values())).dtype
            ),
        )

    def _state(self, step: int) -> TrainingState:
        request, engine = self.request, self.engine
        purpose = request.settings
        executor = settings_for(request.config, request.row.accelerator).executor
        return TrainingState(
            step=step,
            applied_steps=engine.applied_steps,
            num_steps=purpose.num_steps,
            learning_rate=learning_rate(
                step, purpose.num_steps, purpose.learning_rate, purpose.schedule
            ),
            position=StreamPosition(**asdict(self.data.train.position)),
            random=random_state(),
            seed=request.config.seed,
            rows_sha256=self.data.manifest.train.sha256,
            plan_sha256=self.plan.sha256 if self.plan else None,
            config_sha256=sha256_text(canonical_json(request.config)),
            planning_sha256=planning_sha256(request.row, request.config),
            num_parameters=engine.num_parameters,
            dtype=executor.dtype,
            master=engine.master,
            optimizer_state=engine.optimizer_state,
            course=course_of(request, self.source.tokenizer),
        )

    def restore(self, point: Checkpoint) -> None:
        """Bring engine and generators to where a checkpoint was saved.

        Raises:
            InvalidInput: If model or optimizer are others than saved.
        """
        state = point.state
        self._check(point)
        self.engine.load_training_state(
            point.weights, point.optimizer, state.applied_steps
        )
        set_random_state(state.random)
        self.steps.extend(point.steps)
        root = self.request.out / FOLDER
        if point.folder.parent == root:
            # A kill right after a save leaves one too many.
            keep_last = self.request.keep_checkpoints
            checkpoint.prune(root, keep_last, state.step, spare_later=True)
        log.warning("resuming after step %d from %s", state.step, point.folder)

    def _check(self, point: Checkpoint) -> None:
        saved, now = point.state, self._state(point.state.step)
        hints = {
            "num_parameters": "is another model",
            "dtype": "resume with the executor.dtype that saved it",
            "master": "resume with the optimizer.master that saved it",
            "optimizer_state": "resume with the optimizer type and fraction of then",
        }
        for name, remedy in hints.items():
            if getattr(saved, name) != getattr(now, name):
                value = f"{getattr(now, name)}, saved {getattr(saved, name)}"
                raise InvalidInput(name, value, f"{remedy}; or start in another out")
        for change in changed_settings(point.document(REQUEST), self.request):
            log.warning("not as in the saved run: %s", change)
        if saved.plan_sha256 != now.plan_sha256:
            log.warning("not as in the saved run: the plan, which computes the same")
