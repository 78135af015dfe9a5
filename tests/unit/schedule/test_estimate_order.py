"""An estimate's memory is the planner's own, to the byte, in every order."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from test_schedule_estimate import LLAMA_TIED, MACHINE, QWEN_7B
from typer.testing import CliRunner

from lazytrain.cli import root
from lazytrain.errors import SolverMissing
from lazytrain.schedule.assumed import Job, Machine, Order
from lazytrain.schedule.estimate import Estimate, estimate, problem
from lazytrain.schedule.fit import fit, obstacle
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.memory import planned_bytes
from lazytrain.schedule.shapes import ModelShape, model_shape
from lazytrain.units import GIB

SMALL = model_shape(LLAMA_TIED, "135M")
LARGE = model_shape(QWEN_7B, "7B")
ORDERS: tuple[Order, ...] = ("layer-major", "batch-major", "auto")


def machine(**changes: Any) -> Machine:
    """Return the machine of the estimates with other sizes or rates."""
    return replace(MACHINE, **changes)


def order_of(instance: Instance) -> str:
    """Return the order of an instance's step."""
    assert instance.execution is not None
    return instance.execution.order


def counted(answer: Estimate) -> tuple[int, int, int]:
    """Return the sums of an estimate: device, host, and a boundary's size."""
    causes = dict(answer.gpu_bytes)
    boundary = causes.pop("one_boundary")
    return sum(causes.values()), sum(answer.cpu_bytes.values()), boundary


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("shape", "state_home", "changes"),
    [
        (SMALL, "cpu", {}),
        (SMALL, "nvme", {"nvme_bytes": 8 * GIB}),
        (SMALL, "cpu", {"nvme_bytes": 200 * GIB}),
        # The disk has room for less than one boundary.
        (SMALL, "cpu", {"nvme_bytes": 60_000_000, "cpu_memory_bytes": 2 * GIB}),
        # Host memory has room for none, so that only the disk takes any.
        (SMALL, "cpu", {"nvme_bytes": 60 * GIB, "cpu_memory_bytes": 1_900_000_000}),
        (LARGE, "cpu", {"nvme_bytes": 400 * GIB, "cpu_memory_bytes": 100 * GIB}),
        (LARGE, "auto", {"nvme_bytes": 400 * GIB, "cpu_memory_bytes": 80 * GIB}),
    ],
    ids=["small", "state", "disk", "tiny-disk", "only-disk", "drained", "moved"],
)
def test_each_cause_adds_up_to_what_the_instance_counts(
    order: Order, state_home: Any, shape: ModelShape, changes: dict[str, int]
) -> None:
    job = Job(32, 1024, 4096, state_home=state_home, order=order)
    here = machine(**changes)
    answer = estimate(shape, here, job)
    assert answer.fits, answer.limit
    found = problem(shape, here, job)
    fixed = found.instance.fixed_bytes
    size = found.instance.boundary_bytes[0]
    assert counted(answer) == (fixed.gpu, fixed.cpu, size)
    held = planned_bytes(found.solved(), found.instance)
    assert answer.peak_bytes["cpu"] == held["cpu"]
    assert answer.order == (found.instance.chosen or order)


def test_memory_is_told_of_what_does_not_fit_either() -> None:
    poor = machine(gpu_memory_bytes=GIB // 2)
    for order in ORDERS:
        answer = estimate(SMALL, poor, Job(32, 1024, 4096, order=order))
        assert not answer.fits
        assert answer.order == ""
        assert counted(answer)[0] > poor.gpu_memory_bytes


@pytest.mark.parametrize(
    ("changes", "batch", "taken"),
    [
        # 7B weights and fp32 sums take 43 GiB; a layer at a time needs less.
        ({"gpu_memory_bytes": 40 * GIB}, 32, "layer-major"),
        # 4096 sequences have 28 GiB in each boundary.
        ({"cpu_memory_bytes": 120 * GIB}, 4096, "batch-major"),
    ],
)
def test_auto_is_the_order_that_fits_where_only_one_does(
    changes: dict[str, int], batch: int, taken: Order
) -> None:
    here, job = machine(**changes), Job(batch, 1024, order="auto")
    fitting = [
        order
        for order in ORDERS[:2]
        if not obstacle(LARGE, here, replace(job, order=order))
    ]
    assert fitting == [taken]
    assert obstacle(LARGE, here, job) == ""
    answer = estimate(LARGE, here, job)
    assert answer.fits
    assert answer.order.startswith(taken)


def test_where_no_order_fits_both_reasons_are_told() -> None:
    reason = obstacle(LARGE, machine(gpu_memory_bytes=GIB), Job(32, 1024, order="auto"))
    assert reason.startswith("layer-major: budgets.gpu_cap")
    assert "; batch-major: budgets.gpu_cap" in reason


def test_waves_make_any_batch_fit_that_fits_in_one_sequence_at_a_time() -> None:
    roomy = machine(gpu_memory_bytes=139 * GIB)
    in_layers, _ = fit(LARGE, roomy, Job(1, 1024), "batch")
    in_waves, limit = fit(LARGE, roomy, Job(1, 1024, order="batch-major"), "batch")
    assert in_layers is not None
    assert in_layers < 2**20 == in_waves
    assert limit == "nothing up to the search's end"
    # One wave needs no sum of every layer; the second sequence is what does not fit.
    tight = machine(gpu_memory_bytes=36 * GIB)
    largest, limit = fit(LARGE, tight, Job(1, 1024, 1024, order="batch-major"), "batch")
    assert largest == 1
    assert "gradient_accumulator" in limit


@pytest.mark.parametrize("order", ORDERS)
def test_the_commands_take_an_order(order: str) -> None:
    words = ["Qwen2.5-3B", "--order", order, "--batch", "16", "--gpu-memory", "80GiB"]
    done = CliRunner().invoke(root, ["estimate", *words, "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)["order"]
    assert said == order if order == "layer-major" else "batch-major in 1 wave" in said
    text = CliRunner().invoke(root, ["estimate", *words]).stdout
    assert f"order: {said}\n" in text
    done = CliRunner().invoke(root, ["fit", *words])
    assert done.exit_code == 0, done.output
    assert "largest batch: " in done.stdout


def test_an_unknown_order_is_refused() -> None:
    done = CliRunner().invoke(root, ["estimate", "Qwen2.5-3B", "--order", "sideways"])
    assert done.exit_code == 2
    assert "--order" in done.output


def test_a_missing_solver_is_no_answer_about_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    with pytest.raises(SolverMissing, match="pip install pyscipopt"):
        estimate(SMALL, MACHINE, Job(32, 1024))
