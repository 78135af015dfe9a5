"""``lazytrain evaluate``: the exact match of a trained model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


class StreamName(StrEnum):
    """Whether layers stream through the device."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@app.callback()
def _group() -> None:
    """Evaluate a trained model."""


@app.command()
def evaluate(
    weights: Annotated[Path, typer.Option(help="folder that transformers can load")],
    out: Annotated[Path, typer.Option(help="where eval.json goes")],
    split: Annotated[
        Path | None, typer.Option(help="manifest; its test side is answered")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="rows of the split; default: beside it")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="instead of a split: any file of questions and answers, which end in "
            "'#### X' or 'The answer is: X', or are a number by themselves"
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="the run's record; default: beside the weights")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="the pipeline's configuration, for test_rows")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="answer a seeded sample of so many rows; 0: all", min=0),
    ] = None,
    batch: Annotated[int, typer.Option(help="prompts generated together", min=1)] = 128,
    max_new_tokens: Annotated[
        int,
        typer.Option(help="most tokens per answer; 0: by the training answers", min=0),
    ] = 0,
    before: Annotated[
        bool, typer.Option(help="also evaluate the weights that the run began with")
    ] = True,
    initial_weights: Annotated[
        Path | None,
        typer.Option(help="those weights; default: the run's, or its seed's"),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="plain, alpaca or chatml; default: the tokenizer's own"),
    ] = None,
    stream: Annotated[
        StreamName,
        typer.Option(help="let layers stream through the GPU; auto: if they must"),
    ] = StreamName.AUTO,
) -> None:
    """Let a model answer test rows, judge the answers, and write every prediction."""
    from lazytrain.evaluate.run import Request, run_evaluation
    from lazytrain.evaluate.table import by_type_table
    from lazytrain.records import write

    request = Request(
        weights=weights,
        split=split,
        rows=rows,
        data=data,
        record=record,
        config=config,
        limit=limit,
        batch=batch,
        max_new_tokens=max_new_tokens,
        before=before,
        initial_weights=initial_weights,
        stream=stream.value,
        out=out,
        template=template,
    )
    result = run_evaluation(request)
    write(result, out)
    typer.echo(by_type_table(result), err=True)
    typer.echo(
        f"exact match {result.exact_match:.2%} of {result.num_rows} rows"
        + ("" if result.before is None else f", before {result.before:.2%}")
        + f", most frequent answer {result.majority_baseline:.2%}",
        err=True,
    )
