"""A choice of order hands its plan on: no problem is solved twice, nor otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

import pytest
from counting import counted_solves

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule import solve as solver
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.order import instance_for, limits_of, problem_for
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.predict import predict
from lazytrain.schedule.solve import Limits

Order = Literal["layer-major", "batch-major", "auto"]
ORDERS: tuple[Order, ...] = ("layer-major", "batch-major", "auto")
RowMaker = Callable[..., RunRow]
ConfigMaker = Callable[..., PipelineConfig]
Profiles = tuple[HardwareProfile, LayerProfile]


@pytest.fixture
def profiles(hardware: HardwareProfile, compiled: LayerProfile) -> Profiles:
    """Return a machine and a model with a menu of save levels."""
    return hardware, compiled


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the real solves of each problem, and go on solving."""
    return counted_solves(monkeypatch)


@pytest.mark.parametrize("order", ORDERS)
def test_a_problem_and_its_plan_take_one_solve(
    order: Order,
    profiles: Profiles,
    make_row: RowMaker,
    make_ordered: ConfigMaker,
    solves: Counter[str],
) -> None:
    config = make_ordered(order, "64MiB")
    problem = problem_for(*profiles, make_row(), config)
    plan = problem.solved()
    assert problem.solved().sha256 == plan.sha256
    assert set(solves.values()) == {1} or order == "layer-major"
    assert solves[problem.instance.sha256] == (2 if order == "layer-major" else 1)
    # It is the plan that a solve of the chosen problem gives, with the choice's reason.
    again = solver.solve(problem.instance, limits_of(config))
    assert again.sha256 == plan.sha256
    assert again.prediction == plan.prediction
    assert ("order" in plan.solve.parameters) == (order != "layer-major")
    assert check(plan, problem.instance).violations == ()
    assert instance_for(*profiles, make_row(), config) == problem.instance


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limits", [None, Limits(time_limit_s=20.0, gap=0.001)])
def test_a_prediction_takes_one_solve_of_each_candidate(
    order: Order,
    limits: Limits | None,
    profiles: Profiles,
    make_row: RowMaker,
    make_ordered: ConfigMaker,
    solves: Counter[str],
) -> None:
    config = make_ordered(order, "64MiB")
    expected = predict(*profiles, make_row(), config, limits)
    assert set(solves.values()) == {1}
    assert len(solves) == 1 if order == "layer-major" else len(solves) >= 1
    problem = problem_for(*profiles, make_row(), config)
    seen = solver.solve(problem.instance, limits).prediction
    assert expected is not None
    assert seen is not None
    assert expected.step_s == seen.step_s


def test_a_choice_keeps_to_the_limits_that_it_is_given(
    profiles: Profiles,
    make_row: RowMaker,
    make_ordered: ConfigMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Limits] = []

    def refused(instance: Instance, limits: Limits, method: str = "milp") -> Plan:
        seen.append(limits)
        raise NoSchedule(method)

    monkeypatch.setattr(solver, "solve_milp", refused)
    asked = Limits(time_limit_s=7.0, gap=0.25, seed=3)
    with pytest.raises(NoSchedule):
        problem_for(*profiles, make_row(), make_ordered("auto", "64MiB"), asked)
    # Every wave, and the whole batch.
    assert len(seen) > 1
    assert set(seen) == {asked}
