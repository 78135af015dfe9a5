"""One row of the run sheet: build, train, measure, write a record (paper, Table 3).

A run that ends at a memory limit is a result: its record says ``oom`` or ``host_oom``
and what was asked for. A system that cannot run on this machine leaves ``not_run`` with
the reason and the remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from lazytrain import systems
from lazytrain.errors import LazyTrainError, OutOfMemory
from lazytrain.executor.protocol import Engine
from lazytrain.models.decoder import Decoder
from lazytrain.models.scales import model_config
from lazytrain.profile.bandwidth import make_scratch
from lazytrain.profile.hardware import (
    device_for,
    dtype_of,
    gpu_cap_bytes,
    scratch_folder,
    settings_for,
)
from lazytrain.profile.memory import disk_free_bytes, gpu_context_bytes
from lazytrain.provenance import remember_code
from lazytrain.records import RunRecord, StepRecord, read, write
from lazytrain.schedule.no_plan import NoPlan, read_unless_none
from lazytrain.schedule.plan import Plan
from lazytrain.train import capacity, earlier, held_room, resume
from lazytrain.train.availability import DEEPSPEED_SYSTEMS, why_not
from lazytrain.train.build import PLANNED, build_engine, optimizer_for
from lazytrain.train.checkpoint import Checkpoint
from lazytrain.train.evaluations import Evaluator
from lazytrain.train.lock import hold_accelerator, hold_out
from lazytrain.train.loop import Loop, check_purpose
from lazytrain.train.measure import Outcome
from lazytrain.train.record import (
    over_host_cap,
    plan_vs_measured,
    record_of,
    results_of,
)
from lazytrain.train.request import Data, RunRequest, load_data
from lazytrain.train.sinks import JsonLines, Sink, Sinks, Wandb, progress
from lazytrain.train.source import Source, load_source
from lazytrain.train.subprocess_run import KILLED, RunFailed, is_worker, start
from lazytrain.train.weights_io import save_pretrained
from lazytrain.units import GIB

log = logging.getLogger(__name__)
# Initial weights are written out up to here; beyond, their seed says it all.
INITIAL_WEIGHTS_BYTES = GIB


def run_row(request: RunRequest) -> RunRecord:
    """Run one row and write ``record.json``, ``steps.jsonl`` and, for quality, weights.

    Raises:
        InvalidInput: If data, plan or settings cannot be used.
        DeviceBusy: If another run holds the GPU.
        OutBusy: If another run writes into the same folder.
    """
    check_purpose(request.settings)
    remember_code()
    # A worker's folder is held by the process that waits for it.
    with nullcontext() if is_worker() else hold_out(request.out):
        record = _run(request)
        leave(record, request.out)
    return record


def leave(record: RunRecord, out: Path) -> None:
    """Write a run's record; what an earlier run left is then out of date."""
    write(record, out / "record.json")
    if record.status == "ok":
        earlier.discard(out)


def _run(request: RunRequest) -> RunRecord:
    """Run the row where it can run, and say otherwise why it cannot."""
    row = request.row
    request, unplanned = _without_plan(request)
    reason = why_not(row.system, row.accelerator) or _short_of_disk(request)
    if reason is not None or unplanned is not None:
        earlier.set_aside(request.out)
        status = "oom" if reason is None else "not_run"
        return record_of(request, {"status": status, "reason": reason or unplanned})
    if row.system in DEEPSPEED_SYSTEMS and not is_worker():
        return run_in_process_of_its_own(request)
    with hold_accelerator(row.accelerator):
        return guarded(request, _train)


def _without_plan(request: RunRequest) -> tuple[RunRequest, str | None]:
    """Return the request, and why it cannot run if its plan is a note that none fits.

    A rival on the fixed schedule needs no plan of ours: it runs, and finds its limit.
    """
    if request.plan is None:
        return request, None
    given = read_unless_none(Plan, request.plan)
    if not isinstance(given, NoPlan):
        return request, None
    system = systems.BY_NAME[request.row.system]
    if not system.is_streaming and system.method == systems.FIXED:
        return request.model_copy(update={"plan": None}), None
    return request, f"no schedule fits: {given.reason}"


def _short_of_disk(request: RunRequest) -> str | None:
    """Return why a row's files would not fit on the scratch disk, or None."""
    if request.row.system != "zero-infinity":
        return None
    count = Decoder(model_config(request.row.model)).num_parameters
    scratch = scratch_folder(request.config)
    make_scratch(scratch)
    free = disk_free_bytes(scratch)
    return capacity.short_of_disk(request.row.system, count, free)


def run_in_process_of_its_own(
    request: RunRequest, limit_s: float | None = None
) -> RunRecord:
    """Run a row in a fresh process, and read the record it leaves.

    DeepSpeed changes the process it lives in, and a process that the kernel kills for
    its memory leaves no record: that is ``host_oom`` too.

    Raises:
        RunFailed: If the process ends with an error that is no memory limit.
        RunTooLong: If it takes more than ``limit_s`` seconds.
    """
    path = request.out / "record.json"
    path.unlink(missing_ok=True)
    code = start(request.out / "request.json", request, limit_s)
    if path.exists():
        return read(RunRecord, path)
    if code == KILLED:
        reason = "the process was killed, as the kernel does when memory runs out"
        return record_of(request, {"status": "host_oom", "reason": reason})
    raise RunFailed(f"{request.row.system}: its process ended with code {code}")


def guarded(request: RunRequest, train: Callable[[RunRequest], RunRecord]) -> RunRecord:
    """Train, and turn a memory limit into a record; all else propagates."""
    try:
        return train(request)
    except (MemoryError, RuntimeError, OutOfMemory) as error:
        hit = capacity.recognise(error)
        if hit is None:
            raise
        log.warning("%s: %s", hit.status, hit.reason)
        return record_of(
            request,
            {
                "status": hit.status,
                "reason": hit.reason,
                "requested_bytes": hit.requested_bytes,
            },
        )


def _train(request: RunRequest) -> RunRecord:
    """Load the row's model and train it."""
    source = load_source(request.config.weights, request.row.model)
    return train_source(request, source, resume.begin(request, source))


def train_source(
    request: RunRequest, source: Source, point: Checkpoint | None
) -> RunRecord:
    """Build the engine, run the loop, and describe what came of it.

    Args:
        request: The run.
        source: Its model.
        point: Where it goes on, as ``resume.begin`` found it; None: from the start.
    """
    row, config = request.row, request.config
    plan = read(Plan, request.plan) if request.plan is not None else None
    _check_memory(request, source, plan)
    data = load_data(request, source.tokenizer, resume.position_of(point))
    first = replace(source, state_dict=point.weights) if point else source
    with (
        _closing(build_engine(row, config, plan, first)) as engine,
        held_room.held(request.out, _weights_bytes(request, engine)) as give_back,
    ):
        saver = resume.Saver(request, engine, source, data, plan, [])
        evaluator = Evaluator(request, engine, source, data)
        if point is not None:
            saver.restore(point)
        elif request.purpose == "quality":
            _save_initial(request, engine, source)
        evaluator.begin(len(saver.steps))
        outcome = _train_steps(saver, evaluator, data, give_back)
        peaks = evaluator.peaks()
        if request.purpose == "quality":
            _save(request.out / "weights", engine, source)
            if not outcome.diverged:
                evaluator.finish()
        if plan is not None:
            comparison = plan_vs_measured(engine, outcome, plan, peaks)
            if comparison is not None:
                write(comparison, request.out / "plan_vs_measured.json")
        found = results_of(request, engine, outcome, plan, data, peaks)
        return record_of(request, found | over_host_cap(request, engine))


def _weights_bytes(request: RunRequest, engine: Engine) -> int:
    """Return what the weights take that a run leaves; 0: it leaves none."""
    if request.purpose != "quality":
        return 0
    executor = settings_for(request.config, request.row.accelerator).executor
    return held_room.weights_bytes(executor.dtype, engine.num_parameters)


def _train_steps(
    saver: resume.Saver,
    evaluator: Evaluator,
    data: Data,
    give_back: Callable[[], None],
) -> Outcome:
    """Run the loop from where the run stands to its end, then give back the room."""
    request, earlier = saver.request, tuple(saver.steps)

    def is_due(step: int) -> bool:
        # Both are asked at every step: the evaluator counts what it passes.
        return evaluator.is_due(step) | saver.is_due(step)

    def after_step(step: int) -> None:
        # Answers first: a checkpoint's step then has them whenever it is resumed.
        evaluator.after_step(step)
        saver.after_step(step)

    with Sinks(*_sinks(request, earlier), saver) as sinks:
        loop = Loop(
            saver.engine,
            request.settings,
            sinks.put,
            data.held_out,
            first_step=len(earlier),
            after_step=after_step,
            settle=is_due,
            earlier=earlier,
        )
        outcome = loop.run(data.train)
        give_back()
        return outcome


@contextmanager
def _closing(engine: Engine) -> Iterator[Engine]:
    """Close an engine; a failure to close never hides what went wrong before."""
    try:
        yield engine
    except BaseException:
        try:
            engine.close()
        except (RuntimeError, LazyTrainError) as error:
            log.warning("the engine did not close cleanly: %s", error)
        raise
    engine.close()


def _check_memory(request: RunRequest, source: Source, plan: Plan | None) -> None:
    """Cap the device's allocator, and refuse what the host cannot hold."""
    row, config = request.row, request.config
    device = device_for(row.accelerator)
    settings = settings_for(config, row.accelerator)
    if request.purpose == "throughput":
        capacity.refuse_shared_device(partial(gpu_context_bytes, device))
    capacity.apply_gpu_cap(gpu_cap_bytes(config, row.accelerator, device), device)
    if row.system in PLANNED and plan is not None:
        optimizer = optimizer_for(row.system, config.optimizer)
        needed = capacity.plan_host_bytes(plan, optimizer)
    else:
        count = Decoder(source.config).num_parameters
        itemsize = dtype_of(settings.executor.dtype).itemsize
        needed = capacity.rival_host_bytes(row.system, count, itemsize)
    system = systems.BY_NAME[row.system]
    remedy = capacity.FOR_PLANNED if system.is_streaming else capacity.FOR_RIVAL
    what = f"{row.system} at {row.scale}"
    capacity.preflight(needed, settings.budgets, what, remedy)


def _sinks(request: RunRequest, earlier: Sequence[StepRecord]) -> list[Sink]:
    """Return where the steps go; W&B only when asked for.

    The file of steps starts with those of the run that this one resumes.
    """
    row = request.row
    title = f"{row.accelerator}/{row.scale}/{row.system}"
    lines = JsonLines(request.out / "steps.jsonl")
    for step in earlier:
        lines.put(step)
    sinks: list[Sink] = [
        lines,
        progress(request.settings.num_steps, title),
    ]
    if request.config.wandb != "disabled":
        sinks.append(Wandb(request.config.wandb, title, request.out))
    return sinks


def _save(folder: Path, engine: Engine, source: Source) -> None:
    """Write the engine's weights once every update has reached them."""
    engine.drain()
    save_pretrained(
        folder,
        engine.named_weights(),
        source.config,
        source.tokenizer,
        generation=source.generation,
    )


def _save_initial(request: RunRequest, engine: Engine, source: Source) -> None:
    """Write the weights before training, unless they are large or given."""
    is_small = engine.num_parameters * 4 <= INITIAL_WEIGHTS_BYTES
    if source.state_dict is None and is_small:
        _save(request.out / "initial", engine, source)
