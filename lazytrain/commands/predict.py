"""``lazytrain predict``: rows that nobody has run, from profiles and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lazytrain.config import PipelineConfig, load_runs, load_yaml

app = typer.Typer(help=__doc__)


@app.callback()
def _group() -> None:
    """Predict rows of the run sheet."""


@app.command("predict")
def predict(
    config: Annotated[Path, typer.Option(help="config.yaml of the pipeline")],
    out: Annotated[Path, typer.Option(help="CSV file to write")],
    hardware: Annotated[
        list[Path] | None, typer.Option(help="measured hardware.json; may be repeated")
    ] = None,
    layers: Annotated[
        list[Path] | None, typer.Option(help="measured layers.json; may be repeated")
    ] = None,
    machines: Annotated[Path, typer.Option(help="folder of published machines")] = Path(
        "config/hardware"
    ),
) -> None:
    """Write a predicted row for each row of the sheet with a machine behind it.

    Nothing in the table was measured on the machine it is for, unless its basis says
    so; without a measured profile there is nothing to scale, and no row.
    """
    from lazytrain.profile.targets import load_machines
    from lazytrain.records import HardwareProfile, LayerProfile
    from lazytrain.report.frames import write_table
    from lazytrain.report.predicted import PredictedRow, predicted_rows
    from lazytrain.report.recorded import read_profiles

    settings = load_yaml(PipelineConfig, config)
    rows = predicted_rows(
        load_runs(Path(settings.runs)),
        read_profiles(HardwareProfile, hardware or []),
        read_profiles(LayerProfile, layers or []),
        load_machines(machines),
        settings,
    )
    write_table(rows, PredictedRow, out)
