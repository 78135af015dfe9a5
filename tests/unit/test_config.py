"""The configuration and the run sheet: read, defaults, and errors that name a key."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from lazytrain.config import PipelineConfig, RunRow, find_run, load_runs, load_yaml
from lazytrain.errors import InvalidInput

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "config.yaml"
HEADER = (
    "accelerator\tscale\tsystem\tmodel\tstands_for\tbatch\tseq_len\t"
    "table3\ttable4\ttable5\n"
)


def written(tmp_path, change):
    values = yaml.safe_load(CONFIG.read_text())
    change(values)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_default_configuration_is_valid():
    config = load_yaml(PipelineConfig, CONFIG)
    assert config.accelerator == "auto"
    assert config.records == "runs"
    assert {"cpu", "gpu24", "gpu80", "h200", "h200-cap70"} <= set(config.accelerators)


def test_every_sheet_id_has_settings():
    config = load_yaml(PipelineConfig, CONFIG)
    for name in ("runs.tsv", "runs-paper.tsv", "runs-smoke.tsv"):
        ids = {row.accelerator for row in load_runs(ROOT / "config" / name)}
        assert ids <= set(config.accelerators), name


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda v: v.update(colour="red"), "colour"),
        (lambda v: v["solver"].update(time_limit=3), r"solver\.time_limit"),
        (lambda v: v.update(train_fraction=1.5), "train_fraction"),
        (lambda v: v["optimizer"].update(type="sgd"), r"optimizer\.type"),
        (
            lambda v: v["accelerators"]["cpu"]["throughput"].pop("num_steps"),
            r"accelerators\.cpu\.throughput\.num_steps",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path, change, key):
    with pytest.raises(InvalidInput, match=key) as caught:
        load_yaml(PipelineConfig, written(tmp_path, change))
    assert "config.yaml" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        load_yaml(PipelineConfig, tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\n")
    with pytest.raises(InvalidInput, match="not YAML"):
        load_yaml(PipelineConfig, broken)
    broken.write_bytes(b"\xff\x99\x02")
    with pytest.raises(InvalidInput, match="not YAML"):
        load_yaml(PipelineConfig, broken)
    with pytest.raises(InvalidInput, match=r"none\.tsv.*does not exist"):
        load_runs(tmp_path / "none.tsv")


def test_a_misspelt_key_is_named_before_the_one_it_leaves_missing(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("acelerators: {}\n")
    with pytest.raises(InvalidInput, match=r"^acelerators = "):
        load_yaml(PipelineConfig, path)


def sheet(tmp_path, *lines):
    path = tmp_path / "runs.tsv"
    path.write_text(HEADER + "".join(line + "\n" for line in lines))
    return path


ROW = "cpu\t3B\tlazytrain\t3B-mini\tQwen2.5-3B\t8\t256\ttrue\tfalse\tfalse"


def test_a_row_is_found_by_its_three_names(tmp_path):
    rows = load_runs(sheet(tmp_path, ROW))
    row = find_run(rows, "cpu", "3B", "lazytrain")
    assert (row.batch, row.seq_len, row.table3, row.table4) == (8, 256, True, False)
    with pytest.raises(InvalidInput, match="cpu/3B/megatrain"):
        find_run(rows, "cpu", "3B", "megatrain")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (ROW.replace("\t8\t", "\t0\t"), "batch"),
        (ROW.replace("\t256\t", "\tmany\t"), "seq_len"),
        (ROW.replace("lazytrain", "lazy/train"), "system"),
        (ROW + "\textra", r"cells = \['extra'\]"),
        (ROW.replace("\tfalse\tfalse", "\tfalse\tperhaps"), "table5 = 'perhaps'"),
        (ROW[: ROW.index("\t256")], "seq_len"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(tmp_path, line, said):
    other = ROW.replace("lazytrain", "megatrain")
    with pytest.raises(InvalidInput, match=f"{said}.*line 3"):
        load_runs(sheet(tmp_path, other, line))


def test_a_sheet_without_rows_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no rows"):
        load_runs(sheet(tmp_path))
    (tmp_path / "runs.tsv").write_text("")
    with pytest.raises(InvalidInput, match="no rows"):
        load_runs(tmp_path / "runs.tsv")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = sheet(tmp_path, ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load_runs(path)) == 1


def test_a_run_is_listed_once(tmp_path):
    with pytest.raises(InvalidInput, match="listed twice"):
        load_runs(sheet(tmp_path, ROW, ROW))


def test_a_stand_in_never_bears_the_originals_name():
    for row in load_runs(ROOT / "config" / "runs.tsv"):
        is_mini = row.model.endswith("-mini")
        assert is_mini == (row.accelerator == "cpu")
        assert (row.model == row.stands_for) != is_mini


@pytest.mark.parametrize("scale", ["3B", "7B", "14B", "27B"])
def test_the_gpu_sheets_hold_the_papers_batches(scale):
    from lazytrain.report.printed import printed_table3

    printed = printed_table3(ROOT / "config" / "paper")
    rows = load_runs(ROOT / "config" / "runs.tsv")
    for accelerator, hardware in (("gpu80", "H800"), ("gpu24", "RTX 3090")):
        for system in ("zero3-offload", "megatrain", "lazytrain"):
            row = find_run(rows, accelerator, scale, system)
            assert str(row.batch) == printed[hardware, scale, system].batch
            assert row.seq_len == 1024


def test_rows_are_frozen():
    row = RunRow(
        accelerator="cpu",
        scale="3B",
        system="lazytrain",
        model="m",
        stands_for="m",
        batch=1,
        seq_len=2,
    )
    with pytest.raises(ValueError, match="frozen"):
        row.batch = 2


@pytest.mark.parametrize("records", ["../..", "/tmp/x", "a/../b", "", "runs/"])
def test_records_stay_below_results(records):
    known = yaml.safe_load(CONFIG.read_text())
    with pytest.raises(ValidationError, match="records"):
        PipelineConfig.model_validate(known | {"records": records})


@pytest.mark.parametrize("records", ["runs", "recorded/h200", "recorded/h200-cap70"])
def test_record_folders_are_accepted(records):
    known = yaml.safe_load(CONFIG.read_text())
    assert PipelineConfig.model_validate(known | {"records": records})
