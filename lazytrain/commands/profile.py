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
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="a profile of the same machine under another sheet id, used instead of "
        "measuring",
    ),
]


@profile.command("hardware")
def hardware(
    config: ConfigOption,
    out: OutOption,
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
    source: FromOption = None,
) -> None:
    """Measure memory, links, disk, optimizer and matrix rates of this machine."""
    from lazytrain.profile.accelerator import resolve_accelerator

    settings = load_yaml(PipelineConfig, config)
    if source is not None:
        from lazytrain.profile.reuse import reuse_hardware

        write(reuse_hardware(source, accelerator, settings), out)
        return
    from lazytrain.profile.hardware import measure_hardware

    write(measure_hardware(resolve_accelerator(accelerator), settings), out)


@profile.command("layers")
def layers(
    scale: Annotated[str, typer.Option(help="a scale of the run sheet")],
    config: ConfigOption,
    out: OutOption,
    accelerator: Annotated[str, typer.Option(help="auto, or a sheet id")] = "auto",
    source: FromOption = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="save level of a compiled layer to measure; may be repeated"),
    ] = None,
) -> None:
    """Measure bytes and seconds of each layer type of one scale."""
    from lazytrain.profile.accelerator import resolve_accelerator

    settings = load_yaml(PipelineConfig, config)
    rows = load_runs(Path(settings.runs))
    if source is not None:
        from lazytrain.profile.reuse import reuse_layers

        write(reuse_layers(source, rows, accelerator, scale, settings), out)
        return
    from lazytrain.profile.layers import measure_layers
    from lazytrain.profile.menu import menu_of

    found = resolve_accelerator(accelerator)
    write(measure_layers(rows, found, scale, settings, menu_of(level or [])), out)
