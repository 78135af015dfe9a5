"""What a run leaves: a record made of the row, the machine, and what was found."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lazytrain.executor.protocol import Engine, Peaks
from lazytrain.profile.hardware import device_for, gpu_cap_bytes, settings_for
from lazytrain.profile.memory import gpu_memory_bytes
from lazytrain.provenance import collect, device_name
from lazytrain.records import (
    PlanVsMeasured,
    RunRecord,
    WindowCheck,
    canonical_json,
    sha256_file,
    sha256_text,
)
from lazytrain.schedule.plan import Plan
from lazytrain.train.capacity import configured_bytes
from lazytrain.train.measure import Outcome
from lazytrain.train.request import Data, RunRequest
from lazytrain.units import format_bytes

log = logging.getLogger(__name__)


def results_of(
    request: RunRequest,
    engine: Engine,
    outcome: Outcome,
    plan: Plan | None,
    data: Data,
    peaks: Peaks,
) -> dict[str, Any]:
    """Return the fields that a completed run adds to its record."""
    timed = outcome.timed
    if data.train.counts:
        log.warning("rows dropped or cut: %s", data.train.counts)
    _tell_skipped(outcome)
    found: dict[str, Any] = _status_of(outcome) | {
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
        "nvme": getattr(engine, "nvme", {}),
        "exposed_s": exposed_of(outcome.timed_breakdown_s),
        "breakdown_s": outcome.timed_breakdown_s,
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


def _status_of(outcome: Outcome) -> dict[str, Any]:
    """Return whether a run came to its end, and why it did not."""
    if not outcome.diverged:
        return {"status": "ok"}
    last = max(s.step for s in outcome.steps if s.skipped and s.supervised_tokens)
    reason = (
        f"loss or gradient was not finite in {outcome.diverged} steps in a row, up to "
        f"step {last}: lower learning_rate, and look at weights and data"
    )
    return {"status": "diverged", "reason": reason}


def _tell_skipped(outcome: Outcome) -> None:
    """Say how many steps changed nothing, and why: a loss of 0.0 looks like success."""
    skipped = [step for step in outcome.steps if step.skipped]
    empty = sum(step.supervised_tokens == 0 for step in skipped)
    num_steps = len(outcome.steps)
    if empty:
        log.warning("%d of %d steps had no label and changed nothing", empty, num_steps)
    if len(skipped) > empty:
        log.warning(
            "%d of %d steps changed nothing: loss or gradient was not finite; lower "
            "learning_rate, and look at weights and data",
            len(skipped) - empty,
            num_steps,
        )


def exposed_of(breakdown_s: Mapping[str, float]) -> dict[str, float]:
    """Return the causes for which compute stood still, without their prefix."""
    prefix = "exposed_"
    return {
        cause.removeprefix(prefix): seconds
        for cause, seconds in breakdown_s.items()
        if cause.startswith(prefix)
    }


def plan_vs_measured(
    engine: Engine, outcome: Outcome, plan: Plan, peaks: Peaks
) -> PlanVsMeasured | None:
    """Return prediction beside measurement; None if the engine has no windows."""
    read_windows = getattr(engine, "measured_window_s", None)
    if read_windows is None:
        return None
    measured: dict[str, float] = read_windows()
    expected = plan.prediction
    predicted = expected.window_s if expected else {}
    names = [*predicted, *(name for name in measured if name not in predicted)]
    return PlanVsMeasured(
        plan_sha256=plan.sha256,
        predicted_step_s=expected.step_s if expected else None,
        measured_step_s=outcome.timed.step_s if outcome.timed else None,
        predicted_exposed_s=expected.exposed_s if expected else {},
        measured_exposed_s=exposed_of(outcome.timed_breakdown_s),
        predicted_peak_bytes=expected.peak_bytes if expected else {},
        measured_gpu_peak_bytes=peaks.gpu_bytes,
        measured_host_peak_bytes=peaks.host_bytes,
        windows={
            name: WindowCheck(
                predicted_s=predicted.get(name), measured_s=measured.get(name)
            )
            for name in names
        },
    )


def record_of(request: RunRequest, found: dict[str, Any]) -> RunRecord:
    """Return a record: the row, the machine, and what was found."""
    row = request.row
    made_from = {
        "split": sha256_file(request.split),
        "rows": sha256_file(request.rows),
        # Every setting counts, whatever file or option it came from.
        "config": sha256_text(canonical_json(request.config)),
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
        host_cap_bytes=configured_bytes(
            settings_for(request.config, row.accelerator).budgets
        ),
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


def over_host_cap(request: RunRequest, engine: Engine) -> dict[str, Any]:
    """Return ``host_oom`` for a run that took more than a configured host memory."""
    budgets = settings_for(request.config, request.row.accelerator).budgets
    limit, peak = configured_bytes(budgets), engine.peaks().host_bytes
    if limit is None or peak <= limit:
        return {}
    reason = (
        f"peak resident set {format_bytes(peak)} is over the host_capacity of "
        f"{format_bytes(limit)}"
    )
    return {"status": "host_oom", "reason": reason, "requested_bytes": peak}
