"""``lazytrain doctor`` looks at the machine; ``lazytrain clean`` frees its disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help=__doc__)


@app.command("doctor")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="folder for NVMe files; default: temporary")
    ] = None,
    build_kernels: Annotated[
        bool, typer.Option("--kernels/--no-kernels", help="build the native kernels")
    ] = True,
) -> None:
    """Look at GPU, link, memory, disk and software; exit 1 if something must change."""
    from lazytrain.doctor.disk import default_scratch
    from lazytrain.doctor.report import as_text, examine

    found = examine(scratch or default_scratch(), build_kernels)
    text = found.model_dump_json(indent=1) + "\n" if as_json else as_text(found)
    sys.stdout.write(text)
    if found.worst == "fail":
        raise typer.Exit(1)


@app.command("clean")
def clean(
    root: Annotated[Path, typer.Option(help="scratch folder of runs")],
    older_than: Annotated[str, typer.Option(help="age, such as 90s, 24h or 7d")],
    dry_run: Annotated[bool, typer.Option(help="only say what would go")] = False,
) -> None:
    """Remove what dead runs left in a scratch folder; a live run keeps everything."""
    from lazytrain.tiers.sweep import parse_age, sweep
    from lazytrain.units import format_bytes

    for verdict in sweep(root, parse_age(older_than), dry_run=dry_run):
        size = format_bytes(verdict.size_bytes)
        line = f"{verdict.action}\t{verdict.name}\t{size}\t{verdict.reason}\n"
        sys.stdout.write(line)
