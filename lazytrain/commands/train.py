"""``lazytrain train CONFIG.yaml``: fine-tune a model outside the run sheet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help=__doc__)
# Exit codes; 2 is a user's error, 1 any other.
LIMIT_HIT, DIVERGED = 3, 4


@app.callback()
def _group() -> None:
    """Fine-tune a model."""


@app.command("train")
def train(
    config: Annotated[Path, typer.Argument(help="YAML file, see config/examples")],
    out: Annotated[
        Path | None, typer.Option(help="folder to write, instead of the file's")
    ] = None,
    resume: Annotated[
        str, typer.Option(help="auto, never, or a checkpoint or run to go on from")
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="print the record as JSON on stdout")
    ] = False,
) -> None:
    """Measure, plan and train; leaves record, steps, plan and weights in ``out``.

    Exit code 3 if the run ended at a memory limit, 4 if loss or gradient stayed without
    a finite value: its record says which.
    """
    from lazytrain.config import load_yaml
    from lazytrain.train.finetune import FineTune, fine_tune

    settings = load_yaml(FineTune, config)
    if out is not None:
        settings = settings.model_copy(update={"out": out})
    record = fine_tune(settings, resume)
    if as_json:
        sys.stdout.write(record.model_dump_json() + "\n")
    else:
        sys.stdout.write(f"{record.status}: {settings.out / 'record.json'}\n")
    if record.status != "ok":
        sys.stderr.write(f"lazytrain: {record.status}: {record.reason}\n")
        raise typer.Exit(DIVERGED if record.status == "diverged" else LIMIT_HIT)
