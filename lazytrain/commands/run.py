"""``lazytrain run``: measure one row of the run sheet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lazytrain.config import PipelineConfig, find_run, load_runs, load_yaml
from lazytrain.errors import InvalidInput

if TYPE_CHECKING:
    from lazytrain.train.max_batch import Planner
    from lazytrain.train.request import RunRequest

app = typer.Typer(help=__doc__)


class PurposeName(StrEnum):
    """What a run is for."""

    THROUGHPUT = "throughput"
    QUALITY = "quality"


@app.callback()
def _group() -> None:
    """Measure rows of the run sheet."""


@app.command("run")
def run(
    scale: Annotated[str, typer.Option(help="a scale of the run sheet")],
    system: Annotated[str, typer.Option(help="a system of the run sheet")],
    config: Annotated[Path, typer.Option(help="config.yaml of the pipeline")],
    split: Annotated[Path, typer.Option(help="manifest that `data split` wrote")],
    rows: Annotated[Path, typer.Option(help="rows that `data split` wrote")],
    out: Annotated[Path, typer.Option(help="folder for record, steps and weights")],
    plan: Annotated[Path | None, typer.Option(help="plan that `solve` wrote")] = None,
    instance: Annotated[
        Path | None,
        typer.Option(
            help="the plan's instance, if not beside it: a plan that it refutes, or"
            " that is another row's, is not run"
        ),
    ] = None,
    purpose: Annotated[
        PurposeName, typer.Option(help="throughput measures, quality trains to an EM")
    ] = PurposeName.THROUGHPUT,
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
    save_every: Annotated[
        int, typer.Option(min=0, help="steps between checkpoints; 0: save none")
    ] = 0,
    keep_checkpoints: Annotated[
        int, typer.Option(min=1, help="whole checkpoints to keep")
    ] = 2,
    resume: Annotated[
        str, typer.Option(help="auto, never, or a checkpoint or run to go on from")
    ] = "never",
    search_batch: Annotated[
        str,
        typer.Option(
            help="auto or LOW:HIGH, measure at the largest batch that fits; auto looks"
            " around an estimate"
        ),
    ] = "",
    probe_limit_s: Annotated[
        float,
        typer.Option(min=1, help="seconds for one probe of a search, then it is ended"),
    ] = 600.0,
    hardware: Annotated[
        Path | None,
        typer.Option(help="hardware.json, to plan a search or to check a plan"),
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(help="layers.json, to plan a search or to check a plan"),
    ] = None,
) -> None:
    """Run one row: record.json, steps.jsonl and, for quality, the weights."""
    from lazytrain.profile.accelerator import resolve_accelerator
    from lazytrain.train.given_plan import Origin, check_given
    from lazytrain.train.request import RunRequest
    from lazytrain.train.run import run_row

    _refuse_pairs(plan, instance, search_batch)
    settings = load_yaml(PipelineConfig, config)
    sheet = load_runs(Path(settings.runs))
    request = RunRequest(
        row=find_run(sheet, resolve_accelerator(accelerator), scale, system),
        config=settings,
        purpose=purpose.value,
        split=split,
        rows=rows,
        out=out,
        plan=plan,
        save_every=save_every,
        keep_checkpoints=keep_checkpoints,
        resume=resume,
    )
    if plan is not None:
        origin = Origin(instance, hardware, layers)
        check_given(plan, request.row, settings, origin)
    if search_batch:
        planner = _planner(request, hardware, layers)
        _run_searched(request, search_batch, planner, probe_limit_s)
    else:
        run_row(request)


def _refuse_pairs(plan: Path | None, instance: Path | None, search: str) -> None:
    """Refuse options of which one would be ignored.

    Raises:
        InvalidInput: Naming the one to leave out or to add.
    """
    if plan is not None and search:
        remedy = "a search plans each batch itself: leave --plan or --search-batch out"
        raise InvalidInput("plan", str(plan), remedy)
    if instance is not None and plan is None:
        remedy = "is there to check a plan: give --plan too"
        raise InvalidInput("instance", str(instance), remedy)


def _planner(
    request: RunRequest, hardware: Path | None, layers: Path | None
) -> Planner | None:
    """Return what plans each batch of a search, where both profiles are given."""
    from lazytrain.records import HardwareProfile, LayerProfile, read
    from lazytrain.train.max_batch import Planner

    if hardware is None or layers is None:
        return None
    return Planner(read(HardwareProfile, hardware), read(LayerProfile, layers), request)


def _run_searched(
    request: RunRequest, bounds: str, planner: Planner | None, limit_s: float
) -> None:
    """Search the largest batch within the bounds and measure the row there."""
    from lazytrain.train.bracket import AUTO, estimated, typed
    from lazytrain.train.max_batch import run_at_largest_batch

    if bounds != AUTO:
        bracket = typed(bounds)
    elif planner is None:
        remedy = "needs --hardware and --layers to estimate from; or write LOW:HIGH"
        raise InvalidInput("search_batch", bounds, remedy)
    else:
        profiles = planner.hardware, planner.layers
        bracket = estimated(*profiles, request.row, request.config)
    run_at_largest_batch(request, bracket, planner, limit_s)
