"""What a run or a search plans for itself is solved once, and lies beside its plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from counting import counted_solves
from streaming import small_config
from test_order_entry import ROW, Order, pipeline

from lazytrain.config import PipelineConfig
from lazytrain.records import (
    HardwareProfile,
    LayerProfile,
    RunRecord,
    read,
    write,
)
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.no_plan import NoPlan
from lazytrain.schedule.plan import Plan
from lazytrain.searched import BatchSearch
from lazytrain.train.bracket import Bracket
from lazytrain.train.max_batch import Planner, run_at_largest_batch
from lazytrain.train.planning import make_plan
from lazytrain.train.request import RunRequest


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the real solves of each problem, and go on solving."""
    return counted_solves(monkeypatch)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where profiles of this machine and a stand-in lie."""
    out = tmp_path_factory.mktemp("profiles")
    make_plan(ROW, pipeline("layer-major"), small_config("3B-mini"), out)
    return out


def request(out: Path, config: PipelineConfig) -> RunRequest:
    """Return a run whose batch is to be searched."""
    return RunRequest(
        row=ROW,
        config=config,
        purpose="throughput",
        split=out / "split.json",
        rows=out / "rows.jsonl",
        out=out,
    )


def planner(profiles: Path, asked: RunRequest) -> Planner:
    """Return the planner of a search."""
    hardware = read(HardwareProfile, profiles / "hardware.json")
    return Planner(hardware, read(LayerProfile, profiles / "layers.json"), asked)


@pytest.mark.parametrize("order", ["layer-major", "batch-major", "auto"])
def test_a_run_solves_its_own_plan_once(
    order: Order, tmp_path: Path, solves: Counter[str]
) -> None:
    plan = make_plan(ROW, pipeline(order), small_config("3B-mini"), tmp_path)
    instance = read(Instance, tmp_path / "instance.json")
    assert solves[instance.sha256] == 1
    assert set(solves.values()) == {1}
    assert check(plan, instance).violations == ()
    # Both orders where both are tried, and only then.
    assert (len(solves) > 1) == (order == "auto")


@pytest.mark.parametrize("order", ["layer-major", "auto"])
def test_a_search_solves_each_batch_once_and_keeps_its_instance(
    profiles: Path, tmp_path: Path, order: Order, solves: Counter[str]
) -> None:
    search = planner(profiles, request(tmp_path, pipeline(order)))
    paths = [search.plan(batch) for batch in (2, 4, 2, 4)]
    names = ["plan-2.json", "plan-4.json"] * 2
    assert paths == [tmp_path / name for name in names]
    assert set(solves.values()) == {1}
    for batch in (2, 4):
        instance = read(Instance, tmp_path / f"instance-{batch}.json")
        plan = read(Plan, tmp_path / f"plan-{batch}.json")
        assert check(plan, instance).violations == ()
        assert plan.batch == batch


def test_a_search_that_no_batch_fits_is_recorded_as_a_limit(
    profiles: Path, tmp_path: Path, solves: Counter[str]
) -> None:
    config = pipeline("auto")
    cpu = config.accelerators["cpu"]
    budgets = cpu.budgets.model_copy(update={"gpu_cap": "1MiB"})
    accelerators = {"cpu": cpu.model_copy(update={"budgets": budgets})}
    asked = request(tmp_path, config.model_copy(update={"accelerators": accelerators}))
    write(NoPlan(name="split", reason="not read"), asked.split)
    asked.rows.write_text("")
    record = run_at_largest_batch(asked, Bracket(2, 8), planner(profiles, asked))
    assert record == read(RunRecord, tmp_path / "record.json")
    assert (record.status, record.batch) == ("oom", 2)
    assert "no schedule fits: budgets.gpu_cap = '1.0 MiB'" in str(record.reason)
    found = read(BatchSearch, tmp_path / "search.json")
    assert found.feasible == 0
    assert not any(found.probes.values())
    assert solves == Counter()
