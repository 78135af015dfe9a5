"""A recorded row can be followed back: to its plan, the plan to its problem."""

from pathlib import Path

import pytest

from lazytrain.records import RunRecord, read, sha256_file
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Plan
from lazytrain.searched import BatchSearch

RECORDED = Path(__file__).parents[3] / "results" / "recorded"
ROWS = sorted(RECORDED.glob("*/runs/*/*/*/record.json"))
SEARCHES = sorted(RECORDED.glob("*/search/*/*/*/search.json"))


def name_of(path: Path) -> str:
    """Return machine, accelerator, scale and system of a record."""
    return str(path.parent.relative_to(RECORDED))


@pytest.mark.parametrize("path", ROWS, ids=name_of)
def test_a_row_says_what_made_it(path: Path) -> None:
    """Commit, versions, machine and command are there, of code that was committed."""
    record = read(RunRecord, path)
    made = record.provenance
    assert len(made.commit) >= 12
    assert not made.dirty
    assert made.command.startswith("lazytrain run ")
    assert {"torch", "transformers"} <= made.versions.keys()
    assert (record.accelerator, record.scale, record.system) == path.parts[-4:-1]
    if record.status == "ok":
        assert (path.parent / "steps.jsonl").is_file()
        assert record.master
        assert record.optimizer_state
    else:
        assert record.reason


def check_plan(plan_file: Path, problem: Path, sha256: str) -> None:
    """Hold a plan to the hash in its run's record, and to its problem."""
    assert sha256_file(plan_file) == sha256
    check(read(Plan, plan_file), read(Instance, problem)).raise_if_violated()


@pytest.mark.parametrize("path", ROWS, ids=name_of)
def test_a_planned_row_has_its_plan_which_holds(path: Path) -> None:
    """The hash in the record is that of the plan beside it, and the plan is valid."""
    expected = read(RunRecord, path).provenance.made_from.get("plan")
    folder = path.parents[4]
    place = Path(*path.parts[-4:-1]).with_suffix(".json")
    plan_file = folder / "schedules" / place
    assert plan_file.is_file() == (expected is not None)
    if expected is None:
        return
    check_plan(plan_file, folder / "instances" / place, expected)


@pytest.mark.parametrize("path", SEARCHES, ids=name_of)
def test_a_search_has_the_row_that_it_ended_in(path: Path) -> None:
    found = read(BatchSearch, path)
    assert (found.accelerator, found.scale, found.system) == path.parts[-4:-1]
    fits = {batch for batch, did_fit in found.probes.items() if did_fit}
    assert found.feasible == max(fits)
    assert found.infeasible == min(found.probes.keys() - fits, default=None)
    assert len(found.probes) <= 4
    record = read(RunRecord, path.parent / f"record-{found.feasible}.json")
    assert (record.batch, record.status) == (found.feasible, "ok")
    assert record.cap_bytes is not None
    assert record.gpu_peak_bytes is not None
    assert record.gpu_peak_bytes <= record.cap_bytes
    plan_file = path.parent / f"plan-{found.feasible}.json"
    problem = path.parent / f"instance-{found.feasible}.json"
    check_plan(plan_file, problem, record.provenance.made_from["plan"])


def test_there_are_recorded_rows() -> None:
    """An empty glob would let both tests pass."""
    assert len(ROWS) > 20
    assert SEARCHES
