"""Which way a step goes: layers over the whole batch, or waves through the whole model.

Layer-major order brings every weight once for the whole batch and sums one layer's
gradients at a time. Where weights and all sums fit in HBM, batch-major order holds the
activations of one wave only, so that little or nothing is recomputed; but an update can
then hide under the first wave's forward only, not under the whole batch's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lazytrain.config import AcceleratorSettings, PipelineConfig, RunRow
from lazytrain.errors import DoesNotFit, LazyTrainError, NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import micro_batch, order_of
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.simulate import WORTH
from lazytrain.schedule.solve import Limits, solve, with_choice

log = logging.getLogger(__name__)

# Time per token is taken as constant, which holds down to about here: smaller waves
# leave a GPU idle, and add their gradients to the sums more often.
LEAST_TOKENS: Final = 8192
# What waves must save to be taken: the traffic of their sums is not in the model.
AUTO_WORTH: Final = 0.01


@dataclass(frozen=True)
class Problem:
    """One run's planning problem, and its plan where a choice has solved it.

    Attributes:
        instance: The problem.
        limits: Of its solve.
        plan: What the choice of an order has solved, within the same limits.
    """

    instance: Instance
    limits: Limits
    plan: Plan | None = None

    def solved(self) -> Plan:
        """Return the plan; nothing is solved twice.

        Raises:
            NoSchedule: If there is none, or none within the limits.
        """
        return self.plan or solve(self.instance, self.limits)


@dataclass(frozen=True)
class Candidate:
    """One way to run the step, and what is expected of it."""

    instance: Instance
    plan: Plan

    @property
    def step_s(self) -> float:
        """Predicted seconds."""
        assert self.plan.prediction is not None
        return self.plan.prediction.step_s

    def as_problem(self, limits: Limits, against: str = "") -> Problem:
        """Return it as what is to be run, with the reason for it."""
        text = self.describe() + (f"; {against}" if against else "")
        instance = self.instance.model_copy(update={"chosen": text})
        return Problem(instance, limits, with_choice(self.plan, instance))

    @property
    def recomputes_nothing(self) -> bool:
        """Whether every layer keeps the most that its menu offers, if it has one."""
        menus = self.instance.levels
        levels = self.plan.groups[0].save_level
        full = all(
            not menus.get(kind) or level == menus[kind][-1].name
            for kind, level in zip(self.plan.layer_types, levels, strict=True)
        )
        return full and Home.RECOMPUTE not in self.plan.homes

    def describe(self) -> str:
        """Say what it is and how long its step takes."""
        run = self.instance.execution
        assert run is not None
        cut = ""
        if run.order == "batch-major":
            plural = "s" if run.num_waves > 1 else ""
            cut = f" in {run.num_waves} wave{plural} of {run.wave_rows} sequences"
        return f"{run.order}{cut}: {self.step_s:.3f} s"


@dataclass(frozen=True)
class Choice:
    """A run whose order or waves are to be chosen.

    Attributes:
        hardware: Measured rates.
        layers: Measured layers.
        row: The run.
        config: Settings of the pipeline.
        limits: Of each solve.
    """

    hardware: HardwareProfile
    layers: LayerProfile
    row: RunRow
    config: PipelineConfig
    limits: Limits

    @property
    def settings(self) -> AcceleratorSettings:
        """Settings of the row's sheet id."""
        return self.config.accelerators[self.row.accelerator]

    def candidate(self, order: str, rows: int | None = None) -> Candidate:
        """Plan one order.

        Raises:
            DoesNotFit: If a step does not fit without any activation.
            NoSchedule: If none fits with them.
        """
        changes: dict[str, object] = {"order": order}
        if rows is not None:
            changes["micro_batch_tokens"] = rows * self.row.seq_len
        executor = self.settings.executor.model_copy(update=changes)
        settings = self.settings.model_copy(update={"executor": executor})
        accelerators = self.config.accelerators | {self.row.accelerator: settings}
        config = self.config.model_copy(update={"accelerators": accelerators})
        instance = derive_instance(self.hardware, self.layers, self.row, config)
        return Candidate(instance, solve(instance, self.limits))

    def waves(self) -> Iterator[int]:
        """Yield divisors of the batch, from the configured micro-batch downward."""
        tokens = self.settings.executor.micro_batch_tokens
        largest = micro_batch(self.row.batch, self.row.seq_len, tokens)
        for rows in range(largest, 0, -1):
            if self.row.batch % rows == 0:
                yield rows

    def batch_major(self) -> Candidate:
        """Return the fastest batch-major plan; of near equals the one of larger waves.

        Waves below ``LEAST_TOKENS`` are tried only where no larger one fits.

        Raises:
            DoesNotFit: If not even one sequence at a time fits.
            NoSchedule: If that has no schedule.
        """
        best: Candidate | None = None
        problem: LazyTrainError | None = None
        for rows in self.waves():
            if best and rows * self.row.seq_len < LEAST_TOKENS:
                break
            try:
                other = self.candidate("batch-major", rows)
            except (DoesNotFit, NoSchedule) as error:
                problem = error
                continue
            if best is None or other.step_s < best.step_s * (1 - WORTH):
                best = other
            # Smaller waves only hide less of the update then.
            if other.recomputes_nothing:
                break
        if best is not None:
            return best
        assert problem is not None
        raise problem


def limits_of(config: PipelineConfig) -> Limits:
    """Return the configured limits of a solve."""
    return Limits(config.solver.time_limit_s, config.solver.gap, config.solver.seed)


def instance_for(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
) -> Instance:
    """Return the instance of :func:`problem_for`."""
    return problem_for(hardware, layers, row, config).instance


def problem_for(
    hardware: HardwareProfile,
    layers: LayerProfile,
    row: RunRow,
    config: PipelineConfig,
    limits: Limits | None = None,
) -> Problem:
    """Return the planning problem of one run, in the order and waves that suit it.

    Args:
        hardware: Measured rates.
        layers: Measured layers.
        row: The run.
        config: Settings of the pipeline.
        limits: Of each solve; default: the configured ones.

    Raises:
        InvalidInput: As :func:`derive_instance` does.
        NoSchedule: If batch-major order is asked for and has no schedule.
    """
    limits = limits or limits_of(config)
    choice = Choice(hardware, layers, row, config, limits)
    known = row.accelerator in config.accelerators
    wanted = order_of(choice.settings.executor, row) if known else "layer-major"
    if wanted == "layer-major":
        return Problem(derive_instance(hardware, layers, row, config), limits)
    found = choice.batch_major() if wanted == "batch-major" else None
    problem = found.as_problem(limits) if found else _faster(choice)
    log.info("%s: %s", problem.instance.name, problem.instance.chosen)
    return problem


def _faster(choice: Choice) -> Problem:
    """Return the order of the smaller predicted step; layer-major if they are near.

    Raises:
        DoesNotFit: If neither fits.
        NoSchedule: If neither has a schedule.
    """
    limits = choice.limits
    try:
        waves = choice.batch_major()
    except (DoesNotFit, NoSchedule) as error:
        whole = choice.candidate("layer-major")
        return whole.as_problem(limits, f"batch-major: {error}")
    try:
        whole = choice.candidate("layer-major")
    except (DoesNotFit, NoSchedule) as error:
        return waves.as_problem(limits, f"layer-major: {error}")
    is_worth_it = waves.step_s < whole.step_s * (1 - AUTO_WORTH)
    first, second = (waves, whole) if is_worth_it else (whole, waves)
    return first.as_problem(limits, second.describe())
