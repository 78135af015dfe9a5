"""``lazytrain report``: tables and figures from records; ``lazytrain claims``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lazytrain.config import RunRow, load_runs
from lazytrain.records import HardwareProfile

if TYPE_CHECKING:
    from lazytrain.evaluated import EvalRecord
    from lazytrain.records import RunRecord
    from lazytrain.report.predicted import PredictedRow

app = typer.Typer(help=__doc__)
report = typer.Typer(no_args_is_help=True, help="Make a table or a figure.")
app.add_typer(report, name="report")

Records = Annotated[
    list[Path] | None, typer.Argument(help="record files; none: every cell is n/a")
]
Out = Annotated[Path, typer.Option(help="file to write")]
DocumentOption = Annotated[
    Path | None, typer.Option(help="document whose table is renewed")
]
RecordedFolder = Annotated[
    Path,
    typer.Argument(exists=True, file_okay=False, help="folder of recorded runs"),
]
Paper = Annotated[Path, typer.Option(help="folder of the paper's printed values")]
Sheet = Annotated[Path, typer.Option(help="the run sheet")]
Accelerators = Annotated[
    str, typer.Option("--accelerator", help="sheet ids, separated by commas")
]
Predictions = Annotated[
    Path | None, typer.Option(help="table3_predicted.csv, for columns of its own")
]
PAPER = Path("config/paper")
SHEET = Path("config/runs.tsv")
CLAIMS = Path("config/claims.yaml")


def _rows(sheet: Path, accelerators: str, scale: str = "") -> list[RunRow]:
    """Return the sheet's rows of some accelerators, and of one scale if given."""
    chosen = accelerators.split(",")
    return [
        row
        for row in load_runs(sheet)
        if row.accelerator in chosen and scale in {"", row.scale}
    ]


def _runs(files: list[Path] | None, rows: list[RunRow]) -> list[RunRecord]:
    """Read run records; refuse what a table of the sheet's rows would hide."""
    from lazytrain.report.parameters import refuse_other_counts
    from lazytrain.report.recorded import read_runs, refuse_other_rows

    records = read_runs(files or [])
    refuse_other_rows(records, rows)
    refuse_other_counts(records)
    return records


def _places(
    files: list[Path] | None, records: list[RunRecord]
) -> dict[tuple[str, str, str], str]:
    """Return the file of each throughput record."""
    from lazytrain.report.recorded import key_of

    pairs = zip(records, files or [], strict=True)
    return {
        key_of(r): path.as_posix() for r, path in pairs if r.purpose == "throughput"
    }


def _evaluations(files: list[Path] | None) -> list[EvalRecord]:
    """Read evaluation records."""
    from lazytrain.report.recorded import read_evaluations

    return read_evaluations(files or [])


def _predicted(path: Path | None) -> list[PredictedRow]:
    """Read predicted rows."""
    from lazytrain.report.frames import read_table
    from lazytrain.report.predicted import PredictedRow

    return read_table(PredictedRow, path) if path else []


@report.command()
def table2(out: Out, profiles: Records = None, paper: Paper = PAPER) -> None:
    """Write capacities and rates of the machine, as measured."""
    from lazytrain.report import machine
    from lazytrain.report.frames import write_table
    from lazytrain.report.recorded import read_profiles

    found = read_profiles(HardwareProfile, profiles or [])
    write_table(machine.table2(found, paper), machine.MachineRow, out)


@report.command()
def table3(
    accelerator: Accelerators,
    out: Out,
    records: Records = None,
    sheet: Sheet = SHEET,
    scale: Annotated[str, typer.Option(help="one scale; empty: all")] = "",
    paper: Paper = PAPER,
    predicted: Predictions = None,
) -> None:
    """Write throughput and memory by scale and system."""
    from lazytrain.report import tables
    from lazytrain.report.frames import write_table

    chosen, expected = _rows(sheet, accelerator, scale), _predicted(predicted)
    runs = _runs(records, chosen)
    rows = tables.table3(chosen, runs, paper, expected, _places(records, runs))
    write_table(rows, tables.ThroughputRow, out)


@report.command()
def table4(
    accelerator: Accelerators,
    out: Out,
    records: Records = None,
    sheet: Sheet = SHEET,
    paper: Paper = PAPER,
) -> None:
    """Write exact match by scale and system, before and after training."""
    from lazytrain.report import accuracy
    from lazytrain.report.frames import write_table

    rows = accuracy.table4(_rows(sheet, accelerator), _evaluations(records), paper)
    write_table(rows, accuracy.AccuracyRow, out)


@report.command()
def table5(
    accelerator: Accelerators,
    out: Out,
    records: Records = None,
    sheet: Sheet = SHEET,
    paper: Paper = PAPER,
    predicted: Predictions = None,
) -> None:
    """Write the component ablation."""
    from lazytrain.report import tables
    from lazytrain.report.frames import write_table

    chosen, expected = _rows(sheet, accelerator), _predicted(predicted)
    runs = _runs(records, chosen)
    rows = tables.table5(chosen, runs, paper, expected, _places(records, runs))
    write_table(rows, tables.ThroughputRow, out)


@report.command()
def compare(
    accelerator: Accelerators,
    out: Out,
    records: Records = None,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="evaluation record; may be repeated")
    ] = None,
    claims: Annotated[Path, typer.Option(help="the claims")] = CLAIMS,
    paper: Paper = PAPER,
) -> None:
    """Write each claim beside its measurement, with a verdict."""
    from lazytrain.report import compare as comparison
    from lazytrain.report.claims import load_claims
    from lazytrain.report.frames import write_table

    runs = _runs(records, [])
    evidence = comparison.Evidence(runs, _evaluations(evaluation), paper)
    rows = comparison.compare(load_claims(claims), evidence, accelerator.split(","))
    write_table(rows, comparison.CompareRow, out)


@report.command()
def figure(
    name: Annotated[str, typer.Argument(help="throughput or quality")],
    table: Annotated[Path, typer.Argument(help="table3.csv or table4.csv")],
    out: Out,
) -> None:
    """Draw a bar chart of a table."""
    from lazytrain.errors import InvalidInput
    from lazytrain.report import figures
    from lazytrain.report.accuracy import AccuracyRow
    from lazytrain.report.frames import read_table
    from lazytrain.report.tables import ThroughputRow

    if name == "throughput":
        figures.throughput_figure(read_table(ThroughputRow, table), out)
    elif name == "quality":
        figures.quality_figure(read_table(AccuracyRow, table), out)
    else:
        raise InvalidInput("figure", name, "choose throughput or quality")


@report.command()
def curves(
    out: Out,
    records: Records = None,
    table: Annotated[
        Path | None, typer.Option(help="CSV of every evaluation as well")
    ] = None,
) -> None:
    """Draw loss and exact match along trainings, from the files beside records."""
    from lazytrain.report import curves as drawn
    from lazytrain.report.frames import write_table

    found = drawn.courses(records or [])
    drawn.curves_figure(found, out)
    if table is not None:
        write_table(drawn.curve_table(found), drawn.CurveRow, table)


@report.command()
def leak(out: Out, records: Records = None) -> None:
    """Write what test rows share with training rows, by kind of split."""
    from lazytrain.records import LeakRecord, read
    from lazytrain.report.frames import write_table
    from lazytrain.report.leak import LeakRow, leak_table

    found = [read(LeakRecord, path) for path in records or []]
    write_table(leak_table(found), LeakRow, out)


def _show(table: str, document: Path | None, name: str) -> None:
    """Print a table, or put it between a document's markers."""
    from lazytrain.report.markdown import renew

    if document is None:
        typer.echo(table)
    else:
        renew(document, name, table)


@report.command()
def glance(
    folder: RecordedFolder,
    document: DocumentOption = None,
) -> None:
    """Print the table of recorded runs, or put it into a document."""
    from lazytrain.report import glance as recorded

    _show(recorded.glance(recorded.recorded_runs(folder)), document, "results")


@report.command()
def benchmarked(
    folder: RecordedFolder,
    document: DocumentOption = None,
) -> None:
    """Print the executor's recorded benchmarks, or put them into a document."""
    from lazytrain.report import benchmarked as recorded

    _show(recorded.benchmarked(folder), document, "benchmarks")


@report.command()
def differences(
    folder: RecordedFolder,
    document: DocumentOption = None,
    paper: Paper = PAPER,
) -> None:
    """Print recorded runs beside the paper's rows, or put them into a document."""
    from lazytrain.report import differences as comparison
    from lazytrain.report.glance import recorded_runs

    _show(comparison.differences(recorded_runs(folder), paper), document, "differences")


@app.command("claims")
def claims(
    config: Annotated[Path, typer.Option(help="the claims")] = CLAIMS,
    document: DocumentOption = None,
    paper: Paper = PAPER,
) -> None:
    """Print the table of claims, or put it into a document."""
    from lazytrain.report.claims import claims_table, load_claims
    from lazytrain.report.compare import paper_values

    loaded = load_claims(config)
    table = claims_table(loaded, paper_values(loaded, paper))
    _show(table, document, "claims")
