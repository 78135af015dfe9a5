"""``lazytrain data``: divide a data set, look at what a model will see."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
data = typer.Typer(no_args_is_help=True, help=__doc__)
app.add_typer(data, name="data")

Config = Annotated[Path, typer.Option(help="the pipeline's configuration")]


@app.callback()
def _group() -> None:
    """Divide a data set, look at what a model will see."""


@data.command()
def split(
    out: Annotated[Path, typer.Option(help="where the manifest goes")],
    rows: Annotated[Path, typer.Option(help="where the rows go, as JSON lines")],
    config: Config = Path("config/config.yaml"),
    source: Annotated[
        str | None,
        typer.Option("--data", help="synthetic, file, folder or hub id"),
    ] = None,
    test_source: Annotated[
        str | None,
        typer.Option("--test-data", help="test rows of their own; default: a share"),
    ] = None,
) -> None:
    """Read a data set, number its usable rows, and divide them into train and test."""
    from lazytrain.config import PipelineConfig, load_yaml
    from lazytrain.data.divide import divide
    from lazytrain.data.metamath import load_rows
    from lazytrain.data.rows import write_rows
    from lazytrain.data.split import SplitSettings
    from lazytrain.records import write

    settings = load_yaml(PipelineConfig, config)
    name = settings.data if source is None else source
    test_name = settings.test_data if test_source is None else test_source
    how = SplitSettings(settings.split_mode, settings.seed, settings.train_fraction)
    numbered, manifest = divide(
        load_rows(name, settings.synthetic),
        how,
        source=name,
        test=load_rows(test_name, settings.synthetic) if test_name else None,
        test_source=test_name,
    )
    write_rows(numbered, rows)
    write(manifest, out)
    sys.stderr.write(
        f"{name}: {len(manifest.train.row_ids)} train and "
        f"{len(manifest.test.row_ids)} test rows ({manifest.mode}), "
        f"{manifest.shared_questions} test rows share a question with train, "
        f"skipped {manifest.skipped or 'none'}\n"
    )


@data.command()
def leak(
    split: Annotated[Path, typer.Option(help="manifest of the split")],
    out: Annotated[Path, typer.Option(help="where the counts go")],
    rows: Annotated[
        Path | None, typer.Option(help="rows of the split; default: beside it")
    ] = None,
) -> None:
    """Count test rows whose question is in train, under the paper's split and ours."""
    from lazytrain.data.rows import read_rows
    from lazytrain.data.split import measure_leak
    from lazytrain.records import SplitManifest, read, write

    manifest = read(SplitManifest, split)
    found = measure_leak(
        read_rows(rows or split.parent / "rows.jsonl"),
        manifest.source,
        manifest.seed,
        manifest.train_fraction,
    )
    write(found, out)
    sys.stderr.write(
        f"{found.source}: test rows whose question is in train: "
        f"paper {found.paper[0]} of {found.paper[1]}, "
        f"grouped {found.grouped[0]} of {found.grouped[1]}\n"
    )


@data.command()
def inspect(
    source: Annotated[
        str,
        typer.Option(
            "--data", help="synthetic, file, folder, hub id or described name"
        ),
    ] = "synthetic",
    dataset_dir: Annotated[
        Path, typer.Option(help="folder of dataset_info.json")
    ] = Path("data"),
    tokenizer: Annotated[str, typer.Option(help="byte-level, folder or hub id")] = (
        "byte-level"
    ),
    template: Annotated[
        str | None, typer.Option(help="a named chat template: plain, alpaca, chatml")
    ] = None,
    seq_len: Annotated[int, typer.Option(help="longest row in tokens", min=2)] = 1024,
    train_on_prompt: Annotated[bool, typer.Option(help="take loss on prompts")] = False,
    mask_history: Annotated[bool, typer.Option(help="last turn's loss only")] = False,
    allow_truncation: Annotated[
        bool, typer.Option(help="cut longer rows instead of leaving them out")
    ] = False,
) -> None:
    """Show rendered examples (masked tokens red), lengths, drops and cuts."""
    from lazytrain.data.inspect import inspect_rows
    from lazytrain.data.prompts import load_tokenizer, with_template
    from lazytrain.data.registry import Mixture, load_mixture

    mixture = Mixture(
        dataset=source,
        dataset_dir=str(dataset_dir),
        train_on_prompt=train_on_prompt,
        mask_history=mask_history,
    )
    spoken = with_template(load_tokenizer(tokenizer, 2**31), template)
    loaded = load_mixture(mixture, spoken)
    inspect_rows(
        loaded.rows,
        loaded.skipped,
        spoken,
        seq_len,
        allow_truncation=allow_truncation,
    )
