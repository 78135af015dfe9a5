"""The largest batch that a system fits, found by a few probes.

A batch is feasible if one full step with optimizer state allocated ends without a
memory limit. Each probe runs in a process of its own, because an allocator that has
failed once is not the one a fresh run meets, and is ended after a time: one that swaps
or hangs must not hold the search up.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile, RunRecord, write
from lazytrain.schedule.check import check
from lazytrain.schedule.no_plan import NoPlan
from lazytrain.schedule.order import problem_for
from lazytrain.searched import BatchSearch
from lazytrain.train import earlier
from lazytrain.train.bracket import Bracket
from lazytrain.train.build import PLANNED
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_in_process_of_its_own, run_row
from lazytrain.train.subprocess_run import RunTooLong

log = logging.getLogger(__name__)
MAX_PROBES = 4
PROBE_LIMIT_S = 600.0


@dataclass
class Search:
    """What probes have shown so far."""

    feasible: int = 0
    infeasible: int | None = None
    probes: dict[int, bool] = field(default_factory=dict)
    too_long: list[int] = field(default_factory=list)

    def note(self, batch: int, is_feasible: bool) -> None:
        """Take a probe's answer into account."""
        self.probes[batch] = is_feasible
        if is_feasible:
            self.feasible = max(self.feasible, batch)
        else:
            bound = self.infeasible
            self.infeasible = batch if bound is None else min(bound, batch)


def _next(search: Search, bracket: Bracket) -> int | None:
    """Return the batch to probe next, or None when nothing is left to learn.

    The top first, if it is likely; then the geometric middle, because memory grows in
    proportion to the batch.
    """
    if not search.probes:
        return bracket.high
    if search.infeasible is None:
        return None
    known = max(search.feasible, 0)
    if known == 0 and bracket.low < search.infeasible and len(search.probes) == 1:
        return bracket.low
    middle = math.isqrt(max(known, 1) * search.infeasible)
    middle = max(known + 1, min(middle, search.infeasible - 1))
    return middle if known < middle < search.infeasible else None


def largest_feasible(
    is_feasible: Callable[[int], bool], bracket: Bracket, max_probes: int = MAX_PROBES
) -> Search:
    """Search the largest feasible batch with at most ``max_probes`` probes.

    The answer is the largest batch that a probe has shown to be feasible, 0 if none:
    between it and ``infeasible`` the truth is not known.
    """
    search = Search()
    for _ in range(max_probes):
        batch = _next(search, bracket)
        if batch is None:
            break
        search.note(batch, is_feasible(batch))
        log.info("batch %d: %s", batch, "fits" if search.probes[batch] else "does not")
    return search


def _one_step(config: PipelineConfig, accelerator: str) -> PipelineConfig:
    """Return the configuration with a throughput run of a single step."""
    settings = config.accelerators[accelerator]
    single = settings.throughput.model_copy(update={"num_steps": 1, "warmup_steps": 0})
    changed = settings.model_copy(update={"throughput": single})
    accelerators = config.accelerators | {accelerator: changed}
    return config.model_copy(update={"accelerators": accelerators, "wandb": "disabled"})


def probe(
    request: RunRequest, batch: int, plan: Path | None, limit_s: float = PROBE_LIMIT_S
) -> RunRecord:
    """Run one step at a batch in a fresh process and return its record.

    Raises:
        RunTooLong: If that takes more than ``limit_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="lazytrain-probe-") as folder:
        row = request.row.model_copy(update={"batch": batch})
        single = request.model_copy(
            update={
                "row": row,
                "config": _one_step(request.config, row.accelerator),
                "purpose": "throughput",
                "plan": plan,
                "out": Path(folder),
            }
        )
        return run_in_process_of_its_own(single, limit_s)


def search_batch(
    request: RunRequest,
    bracket: Bracket,
    plan_for: Callable[[int], Path | None] | None = None,
    limit_s: float = PROBE_LIMIT_S,
) -> Search:
    """Find the largest feasible batch of a row.

    Args:
        request: The row; its batch is ignored.
        bracket: Where to look.
        plan_for: Returns the plan of a batch, for systems that run one.
        limit_s: Seconds that one probe may take.

    Raises:
        InvalidInput: If the system cannot run on this machine at all.
    """
    too_long: list[int] = []

    def is_feasible(batch: int) -> bool:
        plan = plan_for(batch) if plan_for is not None else None
        if plan_for is not None and plan is None:
            return False
        try:
            record = probe(request, batch, plan, limit_s)
        except RunTooLong as error:
            log.warning("batch %d: %s", batch, error)
            too_long.append(batch)
            return False
        if record.status == "not_run":
            raise InvalidInput("system", record.system, record.reason or "cannot run")
        return record.status == "ok"

    found = largest_feasible(is_feasible, bracket)
    found.too_long += too_long
    return found


@dataclass(frozen=True)
class Planner:
    """Solves a plan for each batch that is tried, from measured profiles.

    The plan of a batch is solved once: what a probe has shown holds for the run after.
    """

    hardware: HardwareProfile
    layers: LayerProfile
    request: RunRequest
    _known: dict[int, Path | None] = field(default_factory=dict, repr=False)

    def plan(self, batch: int) -> Path | None:
        """Return where the plan of a batch lies; None where none fits the budgets.

        Its instance lies beside it.
        """
        if batch not in self._known:
            self._known[batch] = self._planned(batch)
        return self._known[batch]

    def _planned(self, batch: int) -> Path | None:
        row = self.request.row.model_copy(update={"batch": batch})
        config = self.request.config
        try:
            problem = problem_for(self.hardware, self.layers, row, config)
            plan = problem.solved()
            check(plan, problem.instance).raise_if_violated()
        except (InvalidInput, NoSchedule) as error:
            log.info("batch %d has no plan: %s", batch, error)
            name = f"{row.accelerator}/{row.scale}/{row.system}"
            write(NoPlan(name=name, reason=str(error)), self.path(batch))
            return None
        write(problem.instance, self.request.out / f"instance-{batch}.json")
        write(plan, self.path(batch))
        return self.path(batch)

    def path(self, batch: int) -> Path:
        """Return where the plan of a batch lies, or the note that none fits."""
        return self.request.out / f"plan-{batch}.json"


def run_at_largest_batch(
    request: RunRequest,
    bracket: Bracket,
    planner: Planner | None = None,
    limit_s: float = PROBE_LIMIT_S,
) -> RunRecord:
    """Find a row's largest feasible batch and measure the row there.

    ``search.json`` beside the record says what each probe found.

    Raises:
        InvalidInput: If the system cannot run here, or needs a planner and has none.
    """
    if request.row.system in PLANNED and planner is None:
        remedy = "give hardware.json and layers.json to plan each batch"
        raise InvalidInput("system", request.row.system, remedy)
    if not systems.is_planned(request.row.system):  # profiles were for the estimate
        planner = None
    found = search_batch(request, bracket, planner.plan if planner else None, limit_s)
    batch = found.feasible or bracket.low
    plan = None
    if planner is not None:  # where none fits, the run's record says why
        plan = planner.plan(batch) or planner.path(batch)
    row = request.row.model_copy(update={"batch": batch})
    try:
        return run_row(request.model_copy(update={"row": row, "plan": plan}))
    finally:  # the run has set an earlier search aside by now
        write(_described(request.row, bracket, found), request.out / earlier.SEARCH)
        earlier.discard(request.out)


def _described(row: RunRow, bracket: Bracket, found: Search) -> BatchSearch:
    """Return a search as its record."""
    return BatchSearch(
        accelerator=row.accelerator,
        scale=row.scale,
        system=row.system,
        low=bracket.low,
        high=bracket.high,
        estimated=bracket.estimated,
        probes=found.probes,
        feasible=found.feasible,
        infeasible=found.infeasible,
        too_long=tuple(found.too_long),
    )
