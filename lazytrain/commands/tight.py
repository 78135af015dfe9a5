"""Commands for the measured NVMe case: tighten, windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lazytrain import records

app = typer.Typer(no_args_is_help=True, help=__doc__)

Out = Annotated[Path, typer.Option("--out", help="file to write")]
Count = typer.Option(min=0, help="boundaries that the tier may hold")


@app.command()
def tighten(
    instance: Annotated[Path, typer.Argument(help="instance JSON")],
    out: Out,
    gpu_boundaries: Annotated[int | None, Count] = None,
    cpu_boundaries: Annotated[int | None, Count] = None,
    nvme_boundaries: Annotated[int | None, Count] = None,
) -> None:
    """Give a measured instance less memory, so that it needs the disk."""
    from lazytrain.schedule.instance import Instance
    from lazytrain.schedule.tight import tighten

    problem = records.read(Instance, instance)
    tight = tighten(problem, gpu_boundaries, cpu_boundaries, nvme_boundaries)
    made_from = problem.made_from | {"instance": records.sha256_file(instance)}
    records.write(tight.model_copy(update={"made_from": made_from}), out)


@app.command()
def windows(
    plan: Annotated[Path, typer.Argument(help="plan JSON")],
    instance: Annotated[Path, typer.Argument(help="its instance JSON")],
    out: Out,
) -> None:
    """Write what each NVMe boundary moves in each window (CSV, as Table 7)."""
    from lazytrain.commands.schedule import read_pair
    from lazytrain.schedule.tables import csv_text
    from lazytrain.schedule.tight import window_rows

    records.write_text(csv_text(window_rows(*read_pair(plan, instance))), out)
