"""The leak of a random split, on rows that share questions as MetaMathQA's do."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from lazytrain.commands.data import app as data_app
from lazytrain.commands.report import app
from lazytrain.config import SyntheticSettings
from lazytrain.data.metamath import load_rows
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.records import write


@pytest.fixture
def record(tmp_path):
    """The counts of 500 questions, each worded several times."""
    rows = load_rows("synthetic", SyntheticSettings(num_questions=500, seed=1)).rows
    manifest = split_rows(rows, SplitSettings(), source="synthetic")
    write_rows(rows, tmp_path / "rows.jsonl")
    write(manifest, tmp_path / "split.json")
    words = ["data", "leak", "--split", str(tmp_path / "split.json")]
    words += ["--out", str(tmp_path / "leak.json")]
    assert CliRunner().invoke(data_app, words).exit_code == 0
    return tmp_path / "leak.json", rows


def test_a_random_split_leaks_nearly_everything_and_the_grouped_one_nothing(
    record, tmp_path
):
    path, rows = record
    out = tmp_path / "leak.csv"
    words = ["report", "leak", str(path), "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    paper, grouped = csv.DictReader(out.open())
    assert (paper["split"], grouped["split"]) == ("paper", "grouped")
    assert grouped["shared_rows"] == "0"
    assert grouped["shared_percent"] == "0.00"
    # The chance that at least one of a question's other rows falls into train.
    per_question = len(rows) / 500
    expected = 100 * (1 - 0.3 ** (per_question - 1))
    assert float(paper["shared_percent"]) == pytest.approx(expected, abs=3)
    assert int(paper["num_questions"]) == 500
    assert int(paper["num_rows"]) == len(rows)
