"""``lazytrain profile hardware|layers``: measure the machine and a model's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lazytrain.config import PipelineConfig, load_runs, load_yaml
from lazytrain.records import write

app = typer.Typer(help=__doc__)
profile = typer.Typer(help="Measure what the machine and a model's layers cost.")
app.add_typer(profile, name="profile")

ConfigOption = Annotated[Path, typer.Option(help="config.yaml of the pipeline")]
OutOption = Annotated[Path, typer.Option(help="JSON file to write")]


@profile.command("hardware")
def hardware(
    config: ConfigOption,
    out: OutOption,
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
) -> None:
    """Measure memory, links, disk, optimizer and matrix rates of this machine."""
    from lazytrain.profile.accelerator import resolve_accelerator
    from lazytrain.profile.hardware import measure_hardware

    settings = load_yaml(PipelineConfig, config)
    write(measure_hardware(resolve_accelerator(accelerator), settings), out)


@profile.command("layers")
def layers(
    scale: Annotated[str, typer.Option(help="a scale of the run sheet")],
    config: ConfigOption,
    out: OutOption,
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
) -> None:
    """Measure bytes and seconds of each layer type of one scale."""
    from lazytrain.profile.accelerator import resolve_accelerator
    from lazytrain.profile.layers import measure_layers

    settings = load_yaml(PipelineConfig, config)
    rows = load_runs(Path(settings.runs))
    write(measure_layers(rows, resolve_accelerator(accelerator), scale, settings), out)
