"""``lazytrain export`` and ``checkpoints``: what a run leaves for others to use."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lazytrain.errors import InvalidInput

app = typer.Typer(help=__doc__)


class DtypeName(StrEnum):
    """Dtype of exported weights."""

    KEEP = "keep"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@app.command("export")
def export(
    origin: Annotated[
        Path, typer.Argument(help="a run, a checkpoint, a model folder or a GGUF file")
    ],
    out: Annotated[Path, typer.Argument(help="folder to write")],
    dtype: Annotated[
        DtypeName, typer.Option(help="dtype of the weights")
    ] = DtypeName.KEEP,
    shard_size: Annotated[str, typer.Option(help="largest file")] = "4GiB",
    verify: Annotated[
        bool, typer.Option(help="load it with transformers and compare logits")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the result as JSON on stdout")
    ] = False,
) -> None:
    """Write a Hugging Face folder that plain transformers loads, and prove it."""
    import torch

    from lazytrain.train import export as exporting
    from lazytrain.units import parse_bytes

    wanted = None if dtype == DtypeName.KEEP else getattr(torch, dtype.value)
    done = exporting.export(
        exporting.find_origin(origin),
        out,
        dtype=wanted,
        shard_bytes=parse_bytes(shard_size, "shard_size"),
        verify=verify,
    )
    if as_json:
        fields = {name: _plain(value) for name, value in vars(done).items()}
        sys.stdout.write(json.dumps(fields) + "\n")
        return
    checked = "not verified"
    if done.logit_difference is not None:
        checked = f"logits agree within {done.logit_difference:.1e}"
    sys.stdout.write(
        f"{done.folder}: {done.num_parameters:,} parameters, {done.dtype}, from "
        f"{done.origin}, {checked}\n"
    )


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


@app.command("checkpoints")
def checkpoints(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
) -> None:
    """List a run's checkpoints, newest first, after reading every byte of them."""
    from lazytrain.train import checkpoint
    from lazytrain.train.resume import FOLDER

    inner = run / FOLDER
    found = checkpoint.folders(inner if inner.is_dir() else run)
    if not found:
        raise InvalidInput("run", str(run), "holds no checkpoints; see save_every")
    for folder in found:
        try:
            whole = checkpoint.open_whole(folder)
            line = f"whole, {whole.state.applied_steps} updates"
        except checkpoint.Broken as error:
            line = f"broken: {error}"
        sys.stdout.write(f"{folder.name}\t{line}\n")
