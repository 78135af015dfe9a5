"""Tables 1 and 7 and Figures 4 and 8 of the paper, from solves that just ran.

Printed numbers stand in columns of their own; every schedule, printed or ours, goes
through the same checker under the same instance.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lazytrain import records
from lazytrain.schedule import published
from lazytrain.schedule.check import Report, check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan, Transfer
from lazytrain.schedule.render import render
from lazytrain.schedule.solve import Limits, solve
from lazytrain.units import GIB

TIE_S = 1e-6


@dataclass(frozen=True)
class Solved:
    """One case: the instance, our plan and, where printed, the paper's."""

    instance: Instance
    plan: Plan
    report: Report
    printed: Plan | None = None
    printed_report: Report | None = None


def solve_cases(limits: Limits) -> dict[str, Solved]:
    """Solve and check every published case, beside the printed schedule."""
    return {
        name: _solved(instance, limits) for name, instance in published.cases().items()
    }


def _solved(instance: Instance, limits: Limits) -> Solved:
    """Solve one case; its plan and the printed one must pass the checker."""
    plan = solve(instance, limits)
    report = check(plan, instance)
    report.raise_if_violated()
    printed = printed_for(instance)
    if printed is None:
        return Solved(instance, plan, report)
    judged = check(printed, instance)
    judged.raise_if_violated()
    return Solved(instance, plan, report, printed, judged)


def printed_for(instance: Instance) -> Plan | None:
    """Return the schedule that the paper prints for a case, if its text has one.

    Figure 4's homes are printed as counts only.
    """
    if instance.name == "figure8":
        homes = published.printed_homes_gpt_oss()
        return published.printed_plan(instance, homes, source="Figure 8")
    if instance.name.startswith("figure4"):
        return None
    homes = published.printed_homes_27b()
    return published.printed_plan(instance, homes, published.table7_pieces())


def table1(solved: Mapping[str, Solved]) -> list[dict[str, str]]:
    """Return Table 1: our restricted solve beside the printed values."""
    case = solved["table1"]
    instance, report = case.instance, case.report
    size, budget = instance.boundary_bytes[0], instance.budget_bytes
    counts, rate = report.counts, instance.bandwidth
    nvme = [i for i, home in enumerate(case.plan.homes) if home == Home.NVME]
    exposed = report.exposed_s
    pcie = 1e3 * (exposed["h2d"] + exposed["d2h"])
    disk = 1e3 * (exposed["nvme_write"] + exposed["nvme_read"])
    kept = sum(counts[tier] for tier in ("gpu", "cpu", "nvme"))
    tie = "tie" if nvme != [21] else ""
    return [
        _item("layers", instance.layers, 64, ""),
        _item("activation_per_boundary", f"{size / GIB:.3f}", "0.703", "GiB"),
        _item("gpu_activation_budget", f"{budget.gpu / GIB:.2f}", "21.55", "GiB"),
        _item("cpu_activation_budget", f"{budget.cpu / GIB:.0f}", "15", "GiB"),
        _item("nvme_activation_budget", f"{budget.nvme / GIB:.0f}", "32", "GiB"),
        _item("checkpoints", kept, 52, ""),
        _item("gpu_checkpoints", counts["gpu"], 30, ""),
        _item("cpu_checkpoints", counts["cpu"], 21, ""),
        _item("nvme_checkpoints", counts["nvme"], 1, ""),
        _item("solve_scope", case.plan.solve.scope, "restricted", ""),
        _item("nvme_boundary", " ".join(map(str, nvme)), "21", "", tie),
        _item("h2d_rate", f"{rate.h2d / 1e9:g}", "12", "GB/s"),
        _item("d2h_rate", f"{rate.d2h / 1e9:g}", "12", "GB/s"),
        _item("nvme_read_rate", f"{rate.nvme_read / 1e9:g}", "2.83", "GB/s"),
        _item("nvme_write_rate", f"{rate.nvme_write / 1e9:g}", "3.35", "GB/s"),
        _item("exposed_pcie", f"{pcie:.1f}", "0.0", "ms"),
        _item("exposed_nvme", f"{disk:.1f}", "0.0", "ms"),
    ]


def _item(
    item: str, solved: object, paper: object, unit: str, verdict: str = ""
) -> dict[str, str]:
    """Return one row; equal text is ``equal``, anything else must be named."""
    agrees = "equal" if str(solved) == str(paper) else "differs"
    return {
        "item": item,
        "solved": str(solved),
        "paper": str(paper),
        "unit": unit,
        "verdict": verdict or agrees,
    }


def table7(solved: Mapping[str, Solved]) -> list[dict[str, str]]:
    """Return Table 7: the windows of the NVMe boundary, printed and ours."""
    case = solved["table1"]
    printed = case.printed
    assert printed is not None
    return [
        _piece(case.instance, who, transfer, window)
        for who, plan in (("paper", printed), ("solved", case.plan))
        for transfer in plan.transfers
        if transfer.link in ("nvme_write", "nvme_read")
        for window in transfer.window_bytes
    ]


def _piece(
    instance: Instance, who: str, transfer: Transfer, window: int
) -> dict[str, str]:
    """Return one piece beside what its window can carry."""
    is_write = transfer.link == "nvme_write"
    seconds = instance.window_write_s if is_write else instance.window_read_s
    rate: float = getattr(instance.bandwidth, transfer.link)
    amount, room = transfer.window_bytes[window], rate * seconds[window]
    return {
        "schedule": who,
        "boundary": str(transfer.boundary),
        "transfer": transfer.link,
        "window": str(window),
        "window_ms": f"{seconds[window] * 1e3:.0f}",
        "window_GB": f"{room / 1e9:.4f}",
        "moved_GB": f"{amount / 1e9:.4f}",
        "verdict": "fits" if amount <= room + 1 else "exposed",
    }


def case_rows(solved: Mapping[str, Solved]) -> list[dict[str, str]]:
    """Return one row per case: counts, proof, and the printed schedule's objective."""
    return [_case_row(name, case) for name, case in solved.items()]


def _case_row(name: str, case: Solved) -> dict[str, str]:
    """Return one case as text, without anything that changes between runs."""
    how, counts = case.plan.solve, case.report.counts
    printed = case.printed_report
    row = {
        "case": name,
        "model": case.instance.model,
        "scope": how.scope,
        "status": how.status,
        "gpu": str(counts["gpu"]),
        "cpu": str(counts["cpu"]),
        "nvme": str(counts["nvme"]),
        "recomputed": str(counts["recompute"]),
        "objective_s": f"{case.report.objective_s:.6f}",
        "bound_s": f"{how.bound_s:.6f}",
        "gap": f"{how.gap:.6f}",
        "exposed_s": f"{sum(case.report.exposed_s.values()):.6f}",
        "printed_objective_s": "",
        "gain_s": "",
        "verdict": "not printed",
    }
    if printed:
        gain = printed.objective_s - case.report.objective_s
        row["printed_objective_s"] = f"{printed.objective_s:.6f}"
        row["gain_s"] = f"{gain:.6f}"
        row["verdict"] = "equal objective" if abs(gain) <= TIE_S else "ours is better"
    return row


def csv_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as CSV text with the columns of the first."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def write_all(solved: Mapping[str, Solved], out_dir: Path) -> list[Path]:
    """Write tables, figures, instances and plans; return what was written."""
    texts: Iterable[tuple[str, list[dict[str, str]]]] = (
        ("table1.csv", table1(solved)),
        ("table7.csv", table7(solved)),
        ("published.csv", case_rows(solved)),
    )
    written = []
    for name, rows in texts:
        records.write_text(csv_text(rows), out_dir / name)
        written.append(out_dir / name)
    for name, case in solved.items():
        folder = out_dir / "published"
        records.write(case.instance, folder / f"{name}.instance.json")
        records.write(case.plan, folder / f"{name}.plan.json")
    figures = out_dir / "figures"
    render(
        [solved["figure4-restricted"].plan, solved["figure4"].plan],
        figures / "figure4.svg",
    )
    eight = solved["figure8"]
    assert eight.printed is not None
    render([eight.printed, eight.plan], figures / "figure8.svg")
    return [*written, figures / "figure4.svg", figures / "figure8.svg"]
