"""``lazytrain sheet``: measure many rows where there is no Snakemake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lazytrain.config import PipelineConfig, load_yaml

app = typer.Typer(help=__doc__)


@app.callback()
def _group() -> None:
    """Measure many rows of the run sheet."""


@app.command("operators")
def operators(
    out: Annotated[Path, typer.Option(help="JSON file: seconds by operator")],
    nvme: Annotated[bool, typer.Option(help="also what ZeRO-Infinity needs")] = False,
) -> None:
    """Build the operators of DeepSpeed's rows once, before anything is measured."""
    import json

    from lazytrain.baselines.operators import build
    from lazytrain.records import write_text

    write_text(json.dumps(build(nvme)) + "\n", out)


@app.command("sheet")
def sheet(
    config: Annotated[Path, typer.Option(help="config.yaml of the pipeline")],
    results: Annotated[Path, typer.Option(help="folder for everything that is made")],
    scale: Annotated[str, typer.Option(help="scales, separated by commas")],
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
    system: Annotated[
        str, typer.Option(help="systems, separated by commas; empty: all")
    ] = "",
    limit_s: Annotated[
        float, typer.Option(min=0, help="seconds for one run; 0: no limit")
    ] = 0.0,
    total_s: Annotated[
        float, typer.Option(min=0, help="seconds for all of it; 0: no limit")
    ] = 0.0,
) -> None:
    """Split, profile, plan, check and run each row; go on after one that fails.

    Exit code 1 if a row leaves no record. What is there already is not made again.
    """
    from lazytrain.profile.accelerator import resolve_accelerator
    from lazytrain.train.availability import load_sheet
    from lazytrain.train.sheet import Limits, Sheet, choose
    from lazytrain.train.stages import Folder

    settings = load_yaml(PipelineConfig, config)
    rows = choose(
        load_sheet(settings),
        resolve_accelerator(accelerator),
        scale.split(","),
        system,
    )
    folder = Folder(results, config, settings)
    if Sheet(folder, rows, Limits(limit_s, total_s)).measure():
        raise typer.Exit(1)
