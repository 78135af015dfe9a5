"""The measured NVMe case: less memory, and what each window then carries."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazytrain import records
from lazytrain.cli import root
from lazytrain.errors import InvalidInput
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Budget, Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.solve import solve
from lazytrain.schedule.tight import tighten, window_rows


@pytest.fixture
def measured(hardware, layers, make_row, make_config):
    """Return an instance with room for everything in every tier."""
    disk = hardware.disk.model_copy(update={"write": 4e8, "read": 4e8})
    machine = hardware.model_copy(update={"disk": disk})
    return derive_instance(machine, layers, make_row(), make_config("1GiB"))


def test_budgets_are_whole_boundaries_and_nothing_else_changes(measured):
    size = measured.boundary_bytes[0]
    tight = tighten(measured, 4, 1)
    held = measured.budget_bytes.nvme // size
    assert tight.budget_bytes == Budget(gpu=4 * size, cpu=size, nvme=held * size)
    assert tight.name == f"cpu/27B G4 C1 N{held}"
    changed = {"name", "budget_bytes"}
    assert tight.model_dump(exclude=changed) == measured.model_dump(exclude=changed)
    even = tighten(measured)
    # Twice the square root of eight layers, rounded up.
    assert even.budget_bytes.gpu == 6 * size
    assert even.budget_bytes.cpu == 2 * size
    assert tighten(measured, nvme=0).budget_bytes.nvme == 0
    assert tighten(even, 2, 1).name.startswith("cpu/27B G2 C1")


@pytest.mark.parametrize("counts", [(10**6, 1), (4, 10**6), (-1, 0)])
def test_more_than_the_machine_has_is_refused(measured, counts):
    with pytest.raises(InvalidInput, match="boundaries"):
        tighten(measured, *counts)


def test_every_byte_of_an_nvme_boundary_is_in_a_window_that_holds_it(measured):
    tight = tighten(measured, 4, 1)
    plan = solve(tight)
    assert check(plan, tight).violations == ()
    moved = [i for i, home in enumerate(plan.homes) if home == Home.NVME]
    assert moved
    rows = window_rows(plan, tight)
    assert {int(row["boundary"]) for row in rows} == set(moved)
    size = tight.boundary_bytes[0] / 1e9
    for boundary in moved:
        for link in ("d2h", "nvme_write", "nvme_read", "h2d"):
            pieces = [
                float(row["moved_GB"])
                for row in rows
                if row["boundary"] == str(boundary) and row["transfer"] == link
            ]
            assert sum(pieces) == pytest.approx(size, abs=1e-3)
    exposed = sum(check(plan, tight).exposed_s.values())
    assert ({row["verdict"] for row in rows} == {"fits"}) == (exposed == 0)
    assert {row["accelerator"] for row in rows} == {"cpu"}
    assert {row["scale"] for row in rows} == {"27B"}


def test_windows_are_in_the_order_of_time(measured):
    rows = window_rows(solve(tight := tighten(measured, 4, 1)), tight)
    for phase, sign in (("forward", 1), ("backward", -1)):
        for link in ("nvme_write", "nvme_read"):
            mine = [
                sign * int(row["window"])
                for row in rows
                if (row["phase"], row["transfer"], row["boundary"])
                == (phase, link, rows[0]["boundary"])
            ]
            assert mine == sorted(mine)


def test_a_plan_without_nvme_says_so(measured):
    tight = tighten(measured, nvme=0)
    (row,) = window_rows(solve(tight), tight)
    assert row["boundary"] == "none"
    assert row["verdict"] == "other homes cost less"


def test_the_commands_give_table_and_figure(measured, tmp_path):
    run = CliRunner()
    records.write(measured, tmp_path / "measured.json")
    names = ("measured", "tight", "plan", "table", "figure")
    paths = {name: str(tmp_path / f"{name}.json") for name in names}
    for words in (
        [
            "tighten",
            paths["measured"],
            "--gpu-boundaries",
            "4",
            "--cpu-boundaries",
            "1",
        ],
        ["solve", paths["tight"]],
        ["check", paths["plan"], paths["tight"]],
        ["windows", paths["plan"], paths["tight"]],
        ["render", paths["plan"], paths["plan"]],
    ):
        target = {"tighten": "tight", "solve": "plan", "windows": "table"}
        out = paths[target.get(words[0], "figure")]
        result = run.invoke(root, [*words, "--out", out])
        assert result.exit_code == 0, result.output
    with Path(paths["table"]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["transfer"] for row in rows} >= {"nvme_write", "nvme_read"}
    other = run.invoke(
        root, ["windows", paths["plan"], paths["measured"], "--out", paths["table"]]
    )
    assert "another instance" in str(other.exception)


RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "h200" / "instances"


@pytest.mark.parametrize("method", ["milp", "literal", "greedy", "sqrt-l"])
def test_what_every_layer_keeps_is_no_room_for_boundaries(method):
    """Compiled layers keep 3 MiB each whatever the plan; 28 of them fit beside it."""
    instance = records.read(Instance, RECORDED / "h200" / "7B" / "lazytrain.json")
    kept, size = instance.base_kept_bytes, instance.boundary_bytes[0]
    assert kept == 28 * 3 * 2**20
    tight = tighten(instance, 11)
    assert tight.budget_bytes.gpu == 11 * size + kept
    assert tight.room_bytes.gpu == 11 * size
    assert check(solve(tight, method=method), tight).violations == ()
    # One MiB less, and the eleventh place is gone.
    less = tight.budget_bytes.model_copy(update={"gpu": 11 * size + kept - 2**20})
    short = tight.model_copy(update={"budget_bytes": less})
    plan = solve(short, method=method)
    assert check(plan, short).violations == ()
    assert plan.count(Home.GPU) < 11
