"""The report commands, as the workflow calls them."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazytrain.commands.report import app
from lazytrain.errors import InvalidInput
from lazytrain.records import write

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.chdir(ROOT)

    def invoke(*words):
        result = CliRunner().invoke(app, [str(w) for w in words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def test_table3_from_files(run, make_record, tmp_path):
    write(make_record(), tmp_path / "record.json")
    out = tmp_path / "table3.csv"
    result = run(
        *("report", "table3", tmp_path / "record.json"),
        *("--accelerator", "gpu80", "--scale", "27B", "--out", out),
    )
    assert result.exit_code == 0, result.output
    lines = out.read_text().splitlines()
    assert len(lines) == 4  # header, ZeRO-3, MegaTrain, LazyTrain
    assert "161.40" in lines[3]


def test_tables_without_any_record_are_all_na(run, tmp_path):
    for name in ("table3", "table4", "table5", "compare"):
        out = tmp_path / f"{name}.csv"
        assert run("report", name, "--accelerator", "cpu", "--out", out).exit_code == 0
        assert "n/a" in out.read_text() or "not measured" in out.read_text()


def test_a_half_written_record_is_named(run, make_record, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(make_record().model_dump_json()[:-20])
    with pytest.raises(InvalidInput, match=r"record\.json"):
        run("report", "table3", path, "--accelerator", "cpu", "--out", tmp_path / "t")


def test_an_unknown_figure_is_refused(run, tmp_path):
    with pytest.raises(InvalidInput, match="throughput or quality"):
        run("report", "figure", "nonsense", tmp_path / "t.csv", "--out", tmp_path / "f")


def test_claims_renews_a_document(run, tmp_path):
    document = tmp_path / "ARTIFACT.md"
    shutil.copy(ROOT / "ARTIFACT.md", document)
    text = document.read_text()
    document.write_text(text.replace("| C1 |", "| stale |"))
    assert run("claims", "--document", document).exit_code == 0
    assert document.read_text() == text
    assert "| C1 |" in run("claims").output
