"""Figures: byte-stable SVG, every system drawn, limits written out."""

from lazytrain.report.accuracy import table4
from lazytrain.report.figures import quality_figure, throughput_figure
from lazytrain.report.tables import table3


def test_throughput_is_drawn_the_same_twice(make_row, make_record, paper, tmp_path):
    rows = [make_row(), make_row("megatrain"), make_row("zero3-offload")]
    records = [make_record(), make_record("megatrain", status="oom")]
    table = table3(rows, records, paper)
    for name in ("a.svg", "b.svg"):
        throughput_figure(table, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for shown in ("lazytrain", "OOM@72", "n/a", "27B", "H200"):
        assert shown in text


def test_quality_shows_before_and_after(make_row, make_evaluation, paper, tmp_path):
    row = make_row(scale="7B", accelerator="cpu", model="7B-mini", table4=True)
    quality_figure(table4([row], [make_evaluation()], paper), tmp_path / "q.svg")
    text = (tmp_path / "q.svg").read_text()
    assert "7B-mini" in text
    assert "before" in text


def test_a_sheet_id_that_nobody_ran_has_no_panel(
    make_row, make_record, paper, tmp_path
):
    rows = [make_row(), make_row(accelerator="h200-cap70")]
    throughput_figure(table3(rows, [make_record()], paper), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "gpu80" in text
    assert "h200-cap70" not in text
    throughput_figure(table3(rows, [], paper), tmp_path / "b.svg")
    assert "h200-cap70" in (tmp_path / "b.svg").read_text()
