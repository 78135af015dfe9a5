"""The paper's own cases: printed facts, our optima, tables and figures."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from lazytrain import records
from lazytrain.schedule import published
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.solve import Limits, solve
from lazytrain.schedule.tables import solve_cases, write_all

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def solved():
    return solve_cases(Limits())


def counts(case):
    """Return GPU / CPU / NVMe / recomputed."""
    found = case.report.counts
    return tuple(found[home] for home in ("gpu", "cpu", "nvme", "recompute"))


def test_appendix_lists_partition_the_boundaries():
    homes = published.printed_homes_27b()
    assert [homes.count(home) for home in Home] == [30, 21, 1, 13]
    recomputed = [i for i, home in enumerate(homes) if home == Home.RECOMPUTE]
    assert recomputed == [6, 17, 18, 19, 25, 37, 45, 46, 47, 53, 54, 55, 61]


def test_budgets_in_gib_give_the_printed_counts():
    instance = published.cases()["table1"]
    size, budget = instance.boundary_bytes[0], instance.budget_bytes
    assert size == 754_974_720
    assert (budget.gpu // size, budget.cpu // size) == (30, 21)
    assert published.cases()["figure4"].budget_bytes.cpu // size == 11


def test_printed_27b_schedule_costs_0_9162_s(solved):
    report = solved["table1"].printed_report
    assert report.is_valid
    assert report.objective_s == pytest.approx(0.9162, abs=1e-9)
    assert sum(report.exposed_s.values()) == 0.0


def test_table1_is_the_restricted_optimum(solved):
    case = solved["table1"]
    assert counts(case) == (30, 21, 1, 13)
    assert case.plan.solve.scope == "restricted"
    assert case.plan.solve.status == "optimal"
    assert case.report.objective_s == pytest.approx(0.9162, abs=1e-9)
    assert sum(case.report.exposed_s.values()) == 0.0


def test_unrestricted_solve_recomputes_nothing(solved):
    case = solved["27b-unrestricted"]
    assert case.plan.solve.status == "optimal"
    assert counts(case) == (30, 21, 14, 0)
    assert case.report.objective_s == pytest.approx(0.0205, abs=1e-9)
    gain = case.printed_report.objective_s - case.report.objective_s
    assert gain == pytest.approx(0.8957, abs=1e-9)


def test_figure4_counts_are_explained(solved):
    assert counts(solved["figure4-restricted"]) == (30, 11, 11, 13)
    assert solved["figure4-restricted"].report.objective_s == pytest.approx(0.9262)
    # With links nearly saturated the printed counts are the unrestricted optimum.
    assert counts(solved["figure4-saturated"]) == (30, 11, 11, 13)
    assert counts(solved["27b-saturated"]) == (30, 21, 1, 13)
    assert solved["27b-saturated"].report.objective_s == pytest.approx(0.9162)
    ours = solved["figure4"]
    assert ours.plan.solve.status == "optimal"
    assert counts(ours) == (30, 11, 18, 6)
    assert ours.report.objective_s == pytest.approx(0.4439, abs=1e-9)


def test_figure8_keeps_34_and_offloads_nothing(solved):
    case = solved["figure8"]
    assert counts(case) == (34, 0, 0, 3)
    printed = case.printed
    recomputed = [i for i, h in enumerate(printed.homes) if h == Home.RECOMPUTE]
    assert recomputed == [1, 2, 3]
    assert case.printed_report.objective_s == pytest.approx(case.report.objective_s)


def test_table7_pieces_round_to_the_printed_ones():
    pieces = published.table7_pieces()
    rounded = [round(size / 1e9, 4) for size in pieces["nvme_write"].values()]
    assert rounded == [0.2345, 0.2345, 0.0515, 0.2345]
    reads = [size / 1e9 for size in pieces["nvme_read"].values()]
    assert [f"{size:.3g}" for size in reads] == ["0.198", "0.198", "0.0758", "0.283"]
    for amounts in pieces.values():
        assert sum(amounts.values()) == pytest.approx(published.BOUNDARY_27B)


def test_table7_pieces_are_feasible_and_no_larger_ones_are(solved):
    case = solved["table1"]
    assert check(case.printed, case.instance).is_valid
    pieces = published.table7_pieces()
    write = dict(pieces["nvme_write"])
    write[21] += 1000
    write[23] -= 1000
    more = published.printed_plan(
        case.instance, published.printed_homes_27b(), {"nvme_write": write}
    )
    report = check(more, case.instance)
    assert report.exposed_s["nvme_write"] == pytest.approx(1000 / 3.35e9)


def test_tables_and_figures_are_written_and_stable(solved, tmp_path):
    for name in ("a", "b"):
        write_all(solved, tmp_path / name)
    for path in ("table1.csv", "table7.csv", "published.csv", "figures/figure4.svg"):
        first, second = (tmp_path / name / path for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    with (tmp_path / "a" / "table1.csv").open() as file:
        verdicts = {row["item"]: row["verdict"] for row in csv.DictReader(file)}
    assert set(verdicts.values()) <= {"equal", "tie"}
    assert [item for item, v in verdicts.items() if v == "tie"] in (
        [],
        ["nvme_boundary"],
    )
    with (tmp_path / "a" / "table7.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["verdict"] for row in rows} == {"fits"}
    assert sum(row["schedule"] == "paper" for row in rows) == 8


REFERENCES = {
    "27b-table1": ("table1", published.printed_homes_27b, published.table7_pieces),
    "gpt-oss-120b-figure8": ("figure8", published.printed_homes_gpt_oss, dict),
}


def tracked():
    """Return every generated, tracked file and its contents."""
    files = {
        ROOT / "config" / "instances" / f"{name}.json": instance
        for name, instance in published.cases().items()
    }
    for name, (case, homes, pieces) in REFERENCES.items():
        plan = published.printed_plan(published.cases()[case], homes(), pieces())
        files[ROOT / "schedules" / "reference" / f"{name}.json"] = plan
    return files


def test_tracked_instances_and_references_are_current():
    """Set LAZYTRAIN_WRITE_TRACKED=1 to write them again after a change."""
    for path, content in tracked().items():
        if os.environ.get("LAZYTRAIN_WRITE_TRACKED"):
            records.write(content, path)
        assert records.read(type(content), path) == content


def test_a_tracked_instance_solves_from_its_file():
    path = ROOT / "config" / "instances" / "figure8.json"
    instance = records.read(Instance, path)
    assert solve(instance).count(Home.GPU) == 34
    reference = ROOT / "schedules" / "reference" / "27b-table1.json"
    assert records.read(Plan, reference).count(Home.NVME) == 1
