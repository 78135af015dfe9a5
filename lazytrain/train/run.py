"""One row of the run sheet: build, train, measure, write a record (paper, Table 3).

A run that ends at a memory limit is a result: its record says ``oom`` or ``host_oom``
and what was asked for. A system that cannot run on this machine leaves ``not_run`` with
the reason and the remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lazytrain.config import PipelineConfig, Purpose, RunRow
from lazytrain.data.batches import Batch, BatchStream, batches
from lazytrain.data.rows import Row, read_rows
from lazytrain.data.split import side_rows
from lazytrain.errors import LazyTrainError, OutOfMemory
from lazytrain.executor.protocol import Engine
from lazytrain.models.decoder import Decoder
from lazytrain.profile.hardware import (
    device_for,
    dtype_of,
    gpu_cap_bytes,
    settings_for,
)
from lazytrain.profile.memory import gpu_memory_bytes
from lazytrain.provenance import collect, device_name
from lazytrain.records import (
    Contract,
    RunRecord,
    SplitManifest,
    read,
    sha256_file,
    write,
)
from lazytrain.schedule.plan import Plan
from lazytrain.train import capacity
from lazytrain.train.availability import DEEPSPEED_SYSTEMS, why_not
from lazytrain.train.build import PLANNED, build_engine, optimizer_for
from lazytrain.train.lock import hold_accelerator
from lazytrain.train.loop import Loop, check_purpose
from lazytrain.train.measure import Outcome
from lazytrain.train.sinks import JsonLines, Sink, Sinks, Wandb, progress
from lazytrain.train.source import Source, load_source
from lazytrain.train.subprocess_run import KILLED, RunFailed, is_worker, start
from lazytrain.train.weights_io import save_pretrained
from lazytrain.units import GIB, format_bytes, parse_bytes

log = logging.getLogger(__name__)
# Initial weights are written out up to here; beyond, their seed says it all.
INITIAL_WEIGHTS_BYTES = GIB


class RunRequest(Contract):
    """Everything one run needs; travels as JSON into a process of its own."""

    row: RunRow
    config: PipelineConfig
    purpose: Literal["throughput", "quality"]
    split: Path
    rows: Path
    out: Path
    plan: Path | None = None

    @property
    def settings(self) -> Purpose:
        """Steps and learning rate of the purpose."""
        accelerator = settings_for(self.config, self.row.accelerator)
        return getattr(accelerator, self.purpose)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Data:
    """Training batches, held-out batches, and the manifest they come from."""

    train: BatchStream
    held_out: Sequence[Batch]
    manifest: SplitManifest


def load_data(request: RunRequest, tokenizer: Any) -> Data:
    """Return seeded training batches and, for quality, held-out ones.

    A throughput run pads every row to ``seq_len``: each batch is then the same work.
    """
    rows = read_rows(request.rows)
    manifest = read(SplitManifest, request.split)
    is_quality = request.purpose == "quality"
    train = batches(
        side_rows(rows, manifest.train),
        tokenizer,
        batch=request.row.batch,
        seq_len=request.row.seq_len,
        seed=request.config.seed,
        pad_to="longest" if is_quality else "max",
        allow_truncation=request.config.allow_truncation,
    )
    test = side_rows(rows, manifest.test)[: request.settings.eval_rows]
    held_out = _held_out(request, test, tokenizer) if is_quality else []
    return Data(train, held_out, manifest)


def _held_out(
    request: RunRequest, rows: Sequence[Row], tokenizer: Any
) -> Sequence[Batch]:
    """Return the held-out rows as full batches; a plan knows one batch size only."""
    batch = request.row.batch
    if len(rows) < batch:
        log.warning("no evaluation loss: %d held-out rows fill no batch", len(rows))
        return []
    stream = batches(
        rows,
        tokenizer,
        batch=batch,
        seq_len=request.row.seq_len,
        seed=0,
        epochs=1,
        allow_truncation=request.config.allow_truncation,
    )
    return list(stream)


def run_row(request: RunRequest) -> RunRecord:
    """Run one row and write ``record.json``, ``steps.jsonl`` and, for quality, weights.

    Raises:
        InvalidInput: If data, plan or settings cannot be used.
        DeviceBusy: If another run holds the GPU.
    """
    check_purpose(request.settings)
    row = request.row
    reason = why_not(row.system, row.accelerator)
    if reason is not None:
        record = _record(request, {"status": "not_run", "reason": reason})
    elif row.system in DEEPSPEED_SYSTEMS and not is_worker():
        record = run_in_process_of_its_own(request)
    else:
        with hold_accelerator(row.accelerator):
            record = guarded(request, _train)
    write(record, request.out / "record.json")
    return record


def run_in_process_of_its_own(request: RunRequest) -> RunRecord:
    """Run a row in a fresh process, and read the record it leaves.

    DeepSpeed changes the process it lives in, and a process that the kernel kills for
    its memory leaves no record: that is ``host_oom`` too.

    Raises:
        RunFailed: If the process ends with an error that is no memory limit.
    """
    path = request.out / "record.json"
    path.unlink(missing_ok=True)
    code = start(request.out / "request.json", request)
    if path.exists():
        return read(RunRecord, path)
    if code == KILLED:
        reason = "the process was killed, as the kernel does when memory runs out"
        return _record(request, {"status": "host_oom", "reason": reason})
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
        return _record(
            request,
            {
                "status": hit.status,
                "reason": hit.reason,
                "requested_bytes": hit.requested_bytes,
            },
        )


def _train(request: RunRequest) -> RunRecord:
    """Load the row's model and train it."""
    return train_source(request, load_source(request.config.weights, request.row.model))


def train_source(request: RunRequest, source: Source) -> RunRecord:
    """Build the engine, run the loop, and describe what came of it."""
    row, config = request.row, request.config
    plan = read(Plan, request.plan) if request.plan is not None else None
    _check_memory(request, source, plan)
    data = load_data(request, source.tokenizer)
    with _closing(build_engine(row, config, plan, source)) as engine:
        if request.purpose == "quality":
            _save_initial(request, engine, source)
        with Sinks(*_sinks(request)) as sinks:
            loop = Loop(engine, request.settings, sinks.put, data.held_out)
            outcome = loop.run(data.train)
        if request.purpose == "quality":
            _save(request.out / "weights", engine, source)
        found = _results(request, engine, outcome, plan, data)
        return _record(request, found | _over_host_cap(request, engine))


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


def _over_host_cap(request: RunRequest, engine: Engine) -> dict[str, Any]:
    """Return ``host_oom`` for a run that took more than a configured host memory."""
    budgets = settings_for(request.config, request.row.accelerator).budgets
    if budgets.host_capacity == "auto":
        return {}
    limit = parse_bytes(budgets.host_capacity, "host_capacity")
    peak = engine.peaks().host_bytes
    if peak <= limit:
        return {}
    reason = (
        f"peak resident set {format_bytes(peak)} is over the host_capacity of "
        f"{format_bytes(limit)}"
    )
    return {"status": "host_oom", "reason": reason, "requested_bytes": peak}


def _check_memory(request: RunRequest, source: Source, plan: Plan | None) -> None:
    """Cap the device's allocator, and refuse what the host cannot hold."""
    row, config = request.row, request.config
    device = device_for(row.accelerator)
    settings = settings_for(config, row.accelerator)
    capacity.apply_gpu_cap(gpu_cap_bytes(config, row.accelerator, device), device)
    if row.system in PLANNED and plan is not None:
        optimizer = optimizer_for(row.system, config.optimizer)
        needed = capacity.plan_host_bytes(plan, optimizer)
    else:
        count = Decoder(source.config).num_parameters
        itemsize = dtype_of(settings.executor.dtype).itemsize
        needed = capacity.rival_host_bytes(row.system, count, itemsize)
    what = f"{row.system} at {row.scale}"
    capacity.preflight(needed, settings.budgets.host_capacity, what)


def _sinks(request: RunRequest) -> list[Sink]:
    """Return where the steps go; W&B only when asked for."""
    row = request.row
    title = f"{row.accelerator}/{row.scale}/{row.system}"
    sinks: list[Sink] = [
        JsonLines(request.out / "steps.jsonl"),
        progress(request.settings.num_steps, title),
    ]
    if request.config.wandb != "disabled":
        sinks.append(Wandb(request.config.wandb, title, request.out))
    return sinks


def _save(folder: Path, engine: Engine, source: Source) -> None:
    """Write the engine's weights once every update has reached them."""
    engine.drain()
    save_pretrained(folder, engine.named_weights(), source.config, source.tokenizer)


def _save_initial(request: RunRequest, engine: Engine, source: Source) -> None:
    """Write the weights before training, unless they are large or given."""
    is_small = engine.num_parameters * 4 <= INITIAL_WEIGHTS_BYTES
    if source.state_dict is None and is_small:
        _save(request.out / "initial", engine, source)


def _results(
    request: RunRequest,
    engine: Engine,
    outcome: Outcome,
    plan: Plan | None,
    data: Data,
) -> dict[str, Any]:
    """Return the fields that a completed run adds to its record."""
    timed, peaks = outcome.timed, engine.peaks()
    if data.train.counts:
        log.warning("rows dropped or cut: %s", data.train.counts)
    found: dict[str, Any] = {
        "status": "ok",
        "num_parameters": engine.num_parameters,
        "num_steps": len(outcome.steps),
        "warmup_steps": request.settings.warmup_steps,
        "gpu_peak_bytes": peaks.gpu_bytes,
        "host_peak_bytes": peaks.host_bytes,
        "first_loss": next(iter(outcome.losses), None),
        "last_loss": next(reversed(outcome.losses), None),
        "eval_loss": outcome.eval_loss,
        "skipped_steps": outcome.skipped_steps,
        "master": engine.master,
        "optimizer_state": engine.optimizer_state,
        "kernel": engine.kernel,
        "exposed_s": outcome.timed_breakdown_s,
        "seeds": {
            "weights": request.config.seed,
            "order": request.config.seed,
            "split": data.manifest.seed,
        },
    }
    if timed is not None:
        found |= {
            "tokens_per_s": timed.tokens_per_s,
            "padded_tokens_per_s": timed.padded_tokens_per_s,
            "tflops": timed.tflops(engine.num_parameters),
            "step_s": timed.step_s,
        }
        body = settings_for(request.config, request.row.accelerator).executor.body
        if body == "compile" and request.settings.warmup_steps > 0:
            found["compile_s"] = max(0.0, outcome.steps[0].step_s - timed.step_s)
    if plan is not None:
        found |= {
            "plan_sha256": plan.sha256,
            "solve_status": plan.solve.status,
            "solve_gap": plan.solve.gap,
        }
    return found


def _record(request: RunRequest, found: dict[str, Any]) -> RunRecord:
    """Return a record: the row, the machine, and what was found."""
    row = request.row
    made_from = {
        "split": sha256_file(request.split),
        "rows": sha256_file(request.rows),
    }
    if request.plan is not None:
        made_from["plan"] = sha256_file(request.plan)
    return RunRecord(
        system=row.system,
        scale=row.scale,
        model=row.model,
        stands_for=row.stands_for,
        accelerator=row.accelerator,
        batch=row.batch,
        seq_len=row.seq_len,
        purpose=request.purpose,
        device=device_name(row.accelerator),
        cap_bytes=_cap_bytes(request),
        provenance=collect(row.accelerator, made_from),
        **found,
    )


def _cap_bytes(request: RunRequest) -> int | None:
    """Return the cap that a row ran under; None for a whole GPU, and for a CPU."""
    device = device_for(request.row.accelerator)
    if device.type != "cuda":
        return None
    cap = gpu_cap_bytes(request.config, request.row.accelerator, device)
    return cap if cap < gpu_memory_bytes(device) else None
