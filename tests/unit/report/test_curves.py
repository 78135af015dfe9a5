"""Figure 6: the files beside records become curves, and nothing is made up."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from lazytrain.commands.report import app
from lazytrain.evaluated import EvaluationPoint
from lazytrain.records import StepRecord, write, write_lines
from lazytrain.report.curves import courses, looks_of, running_mean
from lazytrain.report.figures import COLOURS
from lazytrain.report.frames import SYSTEMS


def put_run(folder, record, matches=(), skipped=()):
    """Write a run's files; ``matches`` are pairs of step and exact match."""
    write(record, folder / "record.json")
    steps = [
        StepRecord(
            step=number,
            loss=0.0 if number in skipped else 3.0 / number,
            grad_norm=None,
            learning_rate=1e-3,
            step_s=1.0,
            real_tokens=1,
            padded_tokens=1,
            supervised_tokens=1,
            skipped=number in skipped,
        )
        for number in range(1, 7)
    ]
    write_lines(steps, folder / "steps.jsonl")
    points = [
        EvaluationPoint(
            step=step,
            epoch=step / 6,
            rows="full" if step == 6 else "sample",
            num_rows=8,
            exact_match=match,
            by_type={"q": (round(8 * match), 8)},
            seconds=1.0,
            predictions="predictions/x.jsonl",
        )
        for step, match in matches
    ]
    if points:
        write_lines(points, folder / "evaluations.jsonl")
    return folder / "record.json"


def draw(tmp_path, *records):
    """Run the command; return the SVG's text and the table's rows."""
    figure, table = tmp_path / "f.svg", tmp_path / "f.csv"
    words = ["report", "curves", *map(str, records)]
    words += ["--out", str(figure), "--table", str(table)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return figure.read_text(), list(csv.DictReader(table.open()))


@pytest.fixture
def runs(make_record, tmp_path):
    found = []
    for system, last in (("megatrain", 0.5), ("lazytrain", 0.75)):
        record = make_record(system=system, purpose="quality")
        matches = [(0, 0.0), (3, 0.25), (6, last)]
        found.append(put_run(tmp_path / system, record, matches))
    return found


def test_every_evaluation_is_a_row_under_its_system(runs, tmp_path):
    svg, rows = draw(tmp_path, *runs)
    assert [(row["system"], row["step"]) for row in rows] == [
        (system, step) for system in ("megatrain", "lazytrain") for step in "036"
    ]
    assert [row["exact_match_percent"] for row in rows[:3]] == [
        "0.00",
        "25.00",
        "50.00",
    ]
    assert [row["rows"] for row in rows[:3]] == ["sample", "sample", "full"]
    assert ">megatrain<" in svg
    assert ">lazytrain<" in svg


def test_the_model_that_ran_is_named(runs, make_record, tmp_path):
    svg, rows = draw(tmp_path, *runs)
    assert f"{make_record().model}, " in svg
    assert {row["model"] for row in rows} == {make_record().model}


def test_the_same_files_give_the_same_bytes(runs, tmp_path):
    first, _ = draw(tmp_path, *runs)
    again, _ = draw(tmp_path, *reversed(runs))
    assert first == again


def test_runs_without_answers_or_without_steps(make_record, tmp_path):
    loss_only = put_run(tmp_path / "a", make_record(purpose="quality"), skipped=(2,))
    write(make_record(status="oom", purpose="quality"), tmp_path / "b" / "record.json")
    found = courses([loss_only, tmp_path / "b" / "record.json"])
    assert [len(course.steps) for course in found] == [6]
    _, rows = draw(tmp_path, loss_only, tmp_path / "b" / "record.json")
    assert rows == []
    draw(tmp_path)  # no record at all: an empty frame


def test_systems_that_are_shown_together_look_apart():
    """More systems than colours: `lazytrain` had the grey circles of ZeRO-3."""
    shown = ["zero3-offload", "zero-infinity", "megatrain", "lazytrain"]
    looks = looks_of(shown)
    assert len({look.colour for look in looks.values()}) == 4
    assert len({look.marker for look in looks.values()}) == 4
    widths = [looks[name].width for name in shown]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 1
    all_of_them = looks_of(SYSTEMS[: len(COLOURS)]).values()
    assert len({(look.colour, look.marker) for look in all_of_them}) == len(COLOURS)


def test_a_running_mean_looks_back_only():
    assert running_mean([4.0, 2.0, 0.0, 6.0], 3) == [4.0, 3.0, 2.0, 8.0 / 3]
