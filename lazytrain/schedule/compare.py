"""One instance solved by every method, side by side; each row is checked."""

from __future__ import annotations

from lazytrain.errors import LazyTrainError
from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.solve import RULES, Limits, solve

COMPARED = ("milp", *RULES, "fixed-interval:4")
COMPARE_COLUMNS = (
    "method",
    "status",
    "gpu",
    "cpu",
    "nvme",
    "recompute",
    "objective_s",
    "exposed_s",
    "simulated_step_s",
    "note",
)


def compare_rows(instance: Instance, limits: Limits) -> list[dict[str, str]]:
    """Return one checked row per method; a method without a schedule says why."""
    return [_method_row(instance, method, limits) for method in COMPARED]


def _method_row(instance: Instance, method: str, limits: Limits) -> dict[str, str]:
    """Return one method's counts, objective and simulated step."""
    row = dict.fromkeys(COMPARE_COLUMNS, "")
    row["method"] = method
    try:
        plan = solve(instance, limits, method)
    except LazyTrainError as error:
        return row | {"status": "none", "note": str(error)}
    report = check(plan, instance)
    report.raise_if_violated()
    assert plan.prediction is not None
    counts = {home: str(count) for home, count in report.counts.items()}
    return row | {
        **counts,
        "status": plan.solve.status,
        "objective_s": f"{report.objective_s:.6f}",
        "exposed_s": f"{sum(report.exposed_s.values()):.6f}",
        "simulated_step_s": f"{plan.prediction.step_s:.6f}",
    }
