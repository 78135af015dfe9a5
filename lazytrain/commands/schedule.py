"""Commands of the planner: instance, solve, check, simulate, render, estimate, fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lazytrain import records
from lazytrain.config import PipelineConfig, find_run, load_runs, load_yaml
from lazytrain.errors import DoesNotFit, LazyTrainError, NoSchedule, PlanMismatch
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.no_plan import NoPlan, read_unless_none

if TYPE_CHECKING:
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.plan import Plan

app = typer.Typer(no_args_is_help=True, help=__doc__)

Out = Annotated[Path, typer.Option("--out", help="file to write")]
AllowNone = Annotated[
    bool,
    typer.Option(
        "--allow-none",
        help="where no schedule fits, write a note in the file's place and succeed",
    ),
]


def _no_plan(name: str, error: LazyTrainError, out: Path) -> None:
    """Write the note of a run that no schedule fits."""
    records.write(NoPlan(name=name, reason=str(error)), out)
    sys.stderr.write(f"{name}: no schedule fits: {error}\n")


@app.command()
def instance(
    hardware: Annotated[Path, typer.Option(help="hardware.json of this machine")],
    layers: Annotated[Path, typer.Option(help="layers.json of this model")],
    accelerator: Annotated[str, typer.Option(help="sheet id")],
    scale: Annotated[str, typer.Option(help="scale of the run sheet")],
    system: Annotated[str, typer.Option(help="system of the run sheet")],
    out: Out,
    config: Annotated[Path, typer.Option(help="configuration")] = Path(
        "config/config.yaml"
    ),
    runs: Annotated[
        Path | None, typer.Option(help="run sheet, if not config's")
    ] = None,
    allow_none: AllowNone = False,
) -> None:
    """Derive the planning problem of one run from measured profiles."""
    from lazytrain.schedule.order import instance_for

    settings = load_yaml(PipelineConfig, config)
    row = find_run(load_runs(runs or Path(settings.runs)), accelerator, scale, system)
    made_from = {
        "hardware": records.sha256_file(hardware),
        "layers": records.sha256_file(layers),
    }
    profiles = (
        records.read(HardwareProfile, hardware),
        records.read(LayerProfile, layers),
    )
    try:
        problem = instance_for(*profiles, row, settings)
    except (DoesNotFit, NoSchedule) as error:
        if not allow_none:
            raise
        _no_plan(f"{accelerator}/{scale}/{system}", error, out)
        return
    if problem.chosen:
        sys.stderr.write(f"{problem.name}: {problem.chosen}\n")
    records.write(problem.model_copy(update={"made_from": made_from}), out)


@app.command()
def solve(
    instance: Annotated[Path, typer.Argument(help="instance JSON")],
    out: Out,
    time_limit_s: Annotated[float, typer.Option(help="solver limit")] = 60.0,
    gap: Annotated[float, typer.Option(help="relative gap to stop at")] = 0.0,
    seed: Annotated[int, typer.Option(help="solver seed")] = 0,
    method: Annotated[
        str | None,
        typer.Option(
            help="milp, literal, counts, fixed-interval:K, keep-all, recompute-all, "
            "sqrt-l, greedy; default: what the instance names"
        ),
    ] = None,
    allow_none: AllowNone = False,
) -> None:
    """Solve an instance and write its plan."""
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.solve import Limits, solve

    problem = read_unless_none(Instance, instance)
    if isinstance(problem, NoPlan):
        records.write(problem, out)
        return
    try:
        plan = solve(problem, Limits(time_limit_s, gap, seed), method)
    except NoSchedule as error:
        if not allow_none:
            raise
        _no_plan(problem.name, error, out)
        return
    records.write(plan, out)
    how = plan.solve
    proof = "" if how.gap is None else f", gap {how.gap:.4%}"
    counts = "/".join(str(plan.homes.count(h)) for h in ("gpu", "cpu", "nvme"))
    sys.stderr.write(
        f"{plan.name}: {how.status} by {how.method}, objective {how.objective_s:.6f} s"
        f"{proof}, GPU/CPU/NVMe {counts}, recomputed "
        f"{plan.homes.count('recompute')}, {how.seconds:.2f} s\n"
    )


@app.command()
def check(
    plan: Annotated[Path, typer.Argument(help="plan JSON")],
    instance: Annotated[Path, typer.Argument(help="its instance JSON")],
    out: Annotated[Path | None, typer.Option(help="report to write")] = None,
) -> None:
    """Replay a plan against its instance; exit code 1 if it breaks a rule."""
    from lazytrain.schedule.check import check
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.plan import Plan

    given = read_unless_none(Plan, plan)
    if isinstance(given, NoPlan):
        if out:
            records.write(given, out)
        return
    report = check(given, records.read(Instance, instance))
    if out:
        records.write(report, out)
    for violation in report.violations:
        sys.stderr.write(f"violation [{violation.kind}]: {violation.detail}\n")
    if not report.is_valid:
        raise typer.Exit(1)
    sys.stderr.write(
        f"{report.name}: valid, objective {report.objective_s:.6f} s, exposed "
        f"{sum(report.exposed_s.values()):.6f} s\n"
    )


@app.command()
def render(
    plans: Annotated[list[Path], typer.Argument(help="one or more plan JSON")],
    out: Out,
) -> None:
    """Draw where each boundary of a plan waits, one panel per plan (SVG)."""
    from lazytrain.schedule.plan import Plan
    from lazytrain.schedule.render import render

    render([records.read(Plan, path) for path in plans], out)


@app.command()
def published(
    out_dir: Annotated[Path, typer.Option(help="folder for tables and figures")],
    time_limit_s: Annotated[float, typer.Option(help="limit per solve")] = 60.0,
    seed: Annotated[int, typer.Option(help="solver seed")] = 0,
) -> None:
    """Solve the paper's own cases: Tables 1 and 7, Figures 4 and 8."""
    from lazytrain.schedule.solve import Limits
    from lazytrain.schedule.tables import solve_cases, write_all

    for path in write_all(solve_cases(Limits(time_limit_s, 0.0, seed)), out_dir):
        sys.stderr.write(f"wrote {path}\n")


def read_pair(
    plan: Path, instance: Path, *, unchecked: bool = False
) -> tuple[Plan, Instance]:
    """Return a plan and its instance; one that breaks a rule only if ``unchecked``.

    Raises:
        PlanMismatch: If the plan was made for another instance.
        PlanViolation: With every rule that it breaks.
    """
    from lazytrain.schedule.check import check
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.plan import Plan

    given, problem = records.read(Plan, plan), records.read(Instance, instance)
    if given.instance_sha256 != problem.sha256:
        raise PlanMismatch(
            f"{plan} was made for another instance than {instance};"
            " `lazytrain check` says where they differ"
        )
    if not unchecked:
        check(given, problem).raise_if_violated()
    return given, problem


@app.command()
def simulate(
    plan: Annotated[Path, typer.Argument(help="plan JSON")],
    instance: Annotated[Path, typer.Argument(help="its instance JSON")],
    trace: Annotated[Path | None, typer.Option(help="Perfetto trace to write")] = None,
    figure: Annotated[Path | None, typer.Option(help="Gantt SVG to write")] = None,
    unchecked: Annotated[
        bool, typer.Option(help="simulate a plan that the checker refutes, too")
    ] = False,
) -> None:
    """Lay out one step of a plan; print its prediction as JSON."""
    from lazytrain.schedule.simulate import simulate
    from lazytrain.schedule.trace import write_gantt, write_trace

    read, problem = read_pair(plan, instance, unchecked=unchecked)
    result = simulate(read, problem)
    if trace:
        write_trace(result, trace)
    if figure:
        write_gantt(result, read, figure)
    typer.echo(result.prediction.model_dump_json(indent=1))


@app.command()
def compare(
    instance: Annotated[Path, typer.Argument(help="instance JSON")],
    time_limit_s: Annotated[float, typer.Option(help="solver limit")] = 60.0,
) -> None:
    """Solve by every method and print one table (CSV), each row checked."""
    from lazytrain.schedule.compare import compare_rows
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.solve import Limits
    from lazytrain.schedule.tables import csv_text

    problem = records.read(Instance, instance)
    typer.echo(csv_text(compare_rows(problem, Limits(time_limit_s))), nl=False)
