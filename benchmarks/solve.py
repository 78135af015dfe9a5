"""How fast the planner proves: every published case, and growth with layers.

Prints one JSON line with its provenance; writes ``solve.json``, ``solve.csv`` and
``solve.svg`` below ``--out-dir`` (default: ``$OUT``, else ``build/benchmarks``). A time
is the wall clock of building, solving and reading back on one thread, the fastest and
the slowest of ``--repeats`` seeds; ``cpu_s`` is the slowest seed's processor time,
which a busy machine hardly stretches.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lazytrain import provenance, records
from lazytrain.errors import NoSchedule
from lazytrain.schedule.check import check
from lazytrain.schedule.counts import solve_counts
from lazytrain.schedule.instance import Budget, Instance
from lazytrain.schedule.published import cases, instance_27b
from lazytrain.schedule.render import new_figure, save_svg
from lazytrain.schedule.solve import Limits, solve_milp
from lazytrain.schedule.tables import csv_text
from lazytrain.units import gib

GROWTH = (16, 32, 48, 64, 96, 128)
LITERAL = ("27b-unrestricted", "figure4", "figure4-saturated", "figure8")


@dataclass(frozen=True)
class Row:
    """One measured solve."""

    case: str
    method: str
    layers: int
    status: str
    objective_s: float
    gap: float
    counts: str
    fastest_s: float
    slowest_s: float
    cpu_s: float


def scaled(layers: int, hybrid: bool) -> Instance:
    """Return the 27B instance with an 8 GiB CPU budget, scaled to other depths."""
    kind = "hybrid" if hybrid else "equal"
    base = instance_27b(8, f"{kind}-{layers}", layers=layers)
    share = layers / 64
    budget = Budget(gpu=gib(21.55 * share), cpu=gib(8 * share), nvme=gib(32 * share))
    changes: dict[str, object] = {"budget_bytes": budget}
    if not hybrid:
        same = (0.07,) * layers
        changes |= {"rho_s": same, "window_write_s": same, "window_read_s": same}
    return base.model_copy(update=changes)


def measure(instance: Instance, method: str, repeats: int, limit_s: float) -> Row:
    """Solve with several seeds; every plan goes through the checker."""
    seconds, busy = [], []
    for seed in range(repeats):
        started = time.process_time()
        try:
            plan = solve_milp(instance, Limits(limit_s, 0.0, seed), method)
        except NoSchedule as error:
            text = str(error).split(":")[0]
            return Row(instance.name, method, instance.layers, text, 0, 0, "", 0, 0, 0)
        busy.append(time.process_time() - started)
        check(plan, instance).raise_if_violated()
        seconds.append(plan.solve.seconds)
    homes = ("gpu", "cpu", "nvme", "recompute")
    return Row(
        case=instance.name,
        method=method,
        layers=instance.layers,
        status=plan.solve.status,
        objective_s=round(plan.solve.objective_s, 6),
        gap=round(plan.solve.gap or 0.0, 6),
        counts="/".join(str(plan.homes.count(home)) for home in homes),
        fastest_s=round(min(seconds), 3),
        slowest_s=round(max(seconds), 3),
        cpu_s=round(max(busy), 3),
    )


def rows(repeats: int, stall_s: float) -> Iterator[Row]:
    """Measure published cases, the printed program, and growth."""
    measure(cases()["figure8"], "milp", 1, 60)  # the first solve loads the solver
    for instance in cases().values():
        yield measure(instance, "milp", repeats, 60)
    for name in LITERAL:
        yield measure(cases()[name], "literal", 1, 60)
    method = "literal-without-suffix-rows"
    yield measure(cases()["figure4"], method, 1, stall_s)
    for layers in GROWTH:
        for hybrid in (False, True):
            instance = scaled(layers, hybrid)
            row = measure(instance, "milp", repeats, 60)
            exact = solve_counts(instance).solve.objective_s
            assert abs(row.objective_s - exact) < 1e-6, (row, exact)
            yield row


def plot(measured: list[Row], path: Path) -> None:
    """Draw seconds to a proof over layers, equal and hybrid."""
    figure = new_figure(6.0, 3.6)
    (axes,) = figure.axes
    for kind, marker, colour in (("equal", "s", "#0072B2"), ("hybrid", "o", "#D55E00")):
        mine = [row for row in measured if row.case.startswith(f"{kind}-")]
        depth = [row.layers for row in mine]
        axes.plot(
            depth,
            [row.slowest_s for row in mine],
            marker=marker,
            color=colour,
            label=f"{kind} layers, slowest seed",
        )
    axes.axhline(1.0, color="#999999", lw=0.8)
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds to proven optimum")
    axes.set_ylim(bottom=0)
    axes.set_xticks(GROWTH)
    axes.legend(frameon=False)
    save_svg(figure, path)


def main() -> None:
    """Measure, write the table and the plot, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("OUT", "build/benchmarks")
    parser.add_argument("--out-dir", type=Path, default=Path(default))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stall-s", type=float, default=30.0)
    options = parser.parse_args()
    measured = list(rows(options.repeats, options.stall_s))
    table = [{k: str(v) for k, v in asdict(row).items()} for row in measured]
    records.write_text(csv_text(table), options.out_dir / "solve.csv")
    plot(measured, options.out_dir / "solve.svg")
    result = {
        "benchmark": "solve",
        "rows": [asdict(row) for row in measured],
        "provenance": provenance.collect().model_dump(),
    }
    text = json.dumps(result)
    records.write_text(text + "\n", options.out_dir / "solve.json")
    print(text)


if __name__ == "__main__":
    main()
