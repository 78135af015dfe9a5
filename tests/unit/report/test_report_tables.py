"""Tables 2 to 5: cells, order, bytes, and no printed value in a measured column."""

import csv

import pytest
from pydantic import ValidationError

from lazytrain.records import DiskRates, HardwareProfile, LinkRates
from lazytrain.report.accuracy import AccuracyRow, table4
from lazytrain.report.frames import (
    limit_cell,
    measured_cell,
    read_csv,
    read_table,
    to_csv,
    write_table,
)
from lazytrain.report.machine import table2
from lazytrain.report.tables import ThroughputRow, table3, table5

MEASURED = (
    "tflops",
    "gpu_peak_gb",
    "cpu_peak_gb",
    "tokens_per_s",
    "padded_tokens_per_s",
)


def test_a_measured_row_formats_its_record(make_row, make_record, paper):
    (row,) = table3([make_row()], [make_record()], paper)
    assert (row.tflops, row.tokens_per_s) == ("161.40", "1000.0")
    assert (row.gpu_peak_gb, row.cpu_peak_gb) == ("68.840", "361.580")
    assert row.device == "H200"


def test_printed_values_stand_beside_as_printed(make_row, make_record, paper):
    (row,) = table3([make_row()], [make_record()], paper)
    assert (row.paper_hardware, row.paper_tflops) == ("H800", "219.95")
    assert row.paper_tokens_per_s == "1361"
    # 6 * 26,895,998,464 * 1361 / 1e12
    assert row.paper_tflops_with_our_n == "219.63"


@pytest.mark.parametrize(
    ("values", "cell"),
    [
        ({"status": "oom", "batch": 1}, "OOM"),
        ({"status": "oom", "batch": 16}, "OOM@16"),
        ({"status": "host_oom"}, "host OOM"),
        ({"status": "diverged", "reason": "not finite"}, "diverged"),
        ({"status": "not_run", "reason": "no compiler"}, "not run"),
    ],
)
def test_a_limit_is_the_cell_of_every_measured_column(
    make_row, make_record, paper, values, cell
):
    record = make_record(**values)
    (row,) = table3([make_row()], [record], paper)
    assert {getattr(row, name) for name in MEASURED} == {cell}
    assert limit_cell(record) == cell


def test_a_missing_run_is_na_and_keeps_its_printed_values_apart(make_row, paper):
    (row,) = table3([make_row()], [], paper)
    assert {getattr(row, name) for name in MEASURED} == {"n/a"}
    assert row.paper_tflops == "219.95"
    assert row.paper_tflops_with_our_n == "219.63"  # N is the sheet's model's


def test_a_number_that_was_not_taken_is_na(make_record):
    assert measured_cell(make_record(gpu_peak_bytes=None), None, 1) == "n/a"


def test_a_stand_in_has_no_printed_values(make_row, make_record, paper):
    row = make_row(accelerator="cpu", model="27B-mini")
    record = make_record(accelerator="cpu", model="27B-mini")
    (shown,) = table3([row], [record], paper)
    printed = [v for k, v in shown.model_dump().items() if k.startswith("paper_")]
    assert set(printed) == {""}
    assert (shown.model, shown.stands_for) == ("27B-mini", "Qwen3.6-27B")


def test_rows_come_in_the_papers_order_whatever_the_sheets(make_row, paper):
    rows = [
        make_row("lazytrain", "27B"),
        make_row("lazytrain", "3B"),
        make_row("zero3-offload", "3B"),
        make_row("megatrain", "3B"),
    ]
    shown = [(row.scale, row.system) for row in table3(rows, [], paper)]
    assert shown == [
        ("3B", "zero3-offload"),
        ("3B", "megatrain"),
        ("3B", "lazytrain"),
        ("27B", "lazytrain"),
    ]


def test_quality_runs_do_not_enter_table_3(make_row, make_record, paper):
    (row,) = table3([make_row()], [make_record(purpose="quality")], paper)
    assert row.tflops == "n/a"


def test_table_5_shows_the_ablation_with_its_printed_values(
    make_row, make_record, paper
):
    names = ("lazytrain", "megatrain", "lazytrain-no-milp", "lazytrain-no-hybrid8bit")
    rows = [make_row(name) for name in names]
    shown = {row.system: row for row in table5(rows, [make_record()], paper)}
    assert shown["lazytrain-no-milp"].paper_tflops == "193.17"
    assert shown["lazytrain-no-milp"].tflops == "n/a"
    assert shown["lazytrain"].tflops == "161.40"


def test_printed_ablation_belongs_to_27b_alone(make_row, paper):
    (row,) = table5([make_row("lazytrain-no-milp", "7B")], [], paper)
    assert row.paper_tflops == ""


def test_table_4_shows_all_four_systems_of_the_paper(make_row, make_evaluation, paper):
    row = make_row(
        scale="7B", accelerator="cpu", model="7B-mini", stands_for="Q", table4=True
    )
    shown = table4([row], [make_evaluation()], paper)
    assert [(r.system, r.exact_match_percent) for r in shown] == [
        ("zero3-offload", "n/a"),
        ("zero-infinity", "n/a"),
        ("megatrain", "n/a"),
        ("lazytrain", "50.00"),
    ]
    assert shown[-1].exact_match_before_percent == "0.00"
    assert {r.paper_exact_match_percent for r in shown} == {""}


def test_table_4_prints_the_papers_values_beside_a_real_model(make_row, paper):
    shown = table4([make_row(scale="7B", table4=True)], [], paper)
    assert shown[-1].paper_exact_match_percent == "88.95"


def test_table_4_says_why_a_system_has_no_accuracy(make_row, make_evaluation, paper):
    row = make_row(scale="7B", accelerator="cpu", model="7B-mini", table4=True)
    record = make_evaluation(
        "zero3-offload", status="not_run", num_rows=0, exact_match=0.0
    )
    cells = table4([row], [record], paper)[0]
    assert cells.exact_match_percent == "not run"
    assert cells.exact_match_before_percent == "not run"
    assert (cells.num_rows, cells.distinct_answers) == ("", "")


def test_csv_is_byte_stable_and_reads_back(make_row, make_record, paper, tmp_path):
    rows = table3([make_row()], [make_record()], paper)
    path = tmp_path / "table3.csv"
    write_table(rows, ThroughputRow, path)
    assert path.read_text() == to_csv(rows, ThroughputRow)
    assert read_table(ThroughputRow, path) == rows
    assert list(read_csv(path)[0]) == list(ThroughputRow.model_fields)


def test_a_measured_column_refuses_free_text(make_row, make_record, paper):
    (row,) = table3([make_row()], [make_record()], paper)
    with pytest.raises(ValidationError, match="tflops"):
        ThroughputRow.model_validate(row.model_dump() | {"tflops": "about 200"})


def test_an_empty_table_has_its_header():
    assert to_csv([], AccuracyRow).splitlines() == [",".join(AccuracyRow.model_fields)]


def test_table_2_puts_printed_rates_beside_measured_ones(make_record, paper):
    profile = HardwareProfile(
        accelerator="h200",
        device="H200",
        gpu_memory_bytes=150_000_000_000,
        gpu_cap_bytes=150_000_000_000,
        host_memory_bytes=128_000_000_000,
        disk_free_bytes=64_000_000_000,
        link=LinkRates(h2d=55e9, d2h=54e9, h2d_together=45e9, d2h_together=44e9),
        disk=DiskRates(write=1.5e9, read=2e9, depth=4, direct=True),
        optimizer_parameters_per_s={"fp32": 1.5e9},
        threads=16,
        matmul_flops_per_s=7e14,
        provenance=make_record().provenance,
    )
    rows = {row.tier: row for row in table2([profile], paper)}
    assert rows["GPU HBM"].capacity_gb == "150.00"
    assert rows["CPU-GPU link, to GPU"].rate == "55.000"
    assert rows["CPU-GPU link, to GPU"].paper_rate == "12 GB/s per direction"
    assert rows["CPU optimizer, fp32"].rate == "1.500"


def test_transcribed_tables_hold_every_printed_row(paper):
    with (paper / "table3.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24
    assert len(read_csv(paper / "table4.csv")) == 12
    assert len(read_csv(paper / "table5.csv")) == 4


def test_a_row_that_the_host_cannot_hold_says_what_it_asked_for(
    make_row, make_record, paper
):
    """Its printed figure is still counted with all parameters as N."""
    sheet = [
        make_row("zero3-offload", "7B", model="Qwen2.5-7B", stands_for="Qwen2.5-7B")
    ]
    limit = {"status": "host_oom", "reason": "too small", "tflops": None}
    made = make_record("zero3-offload", "7B", **limit)
    made = made.model_copy(
        update={
            "requested_bytes": 190_400_000_000,
            "cap_bytes": 75_161_927_680,
            "host_cap_bytes": 128_849_018_880,
            "num_parameters": 0,
        }
    )
    (row,) = table3(sheet, [made], paper)
    assert (row.tflops, row.asked_host_gb) == ("host OOM", "190.4")
    assert (row.gpu_cap_gb, row.host_cap_gb) == ("75.2", "128.8")
    assert row.paper_tflops_with_our_n == "86.91"
    (without,) = table3(sheet, [], paper)
    assert (without.tflops, without.asked_host_gb) == ("n/a", "")
    assert without.paper_tflops_with_our_n == "86.91"
