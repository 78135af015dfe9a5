"""Records that would mislead a table are refused: by field, value, file and remedy."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazytrain.commands.report import app
from lazytrain.errors import InvalidInput
from lazytrain.records import HardwareProfile, LayerProfile, write
from lazytrain.report.compare import quotient
from lazytrain.report.frames import measured_number
from lazytrain.report.parameters import refuse_other_counts
from lazytrain.report.recorded import (
    read_evaluations,
    read_profiles,
    read_runs,
    refuse_other_rows,
    unlisted,
)

RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "h200"
ROW = Path("h200", "7B", "lazytrain")


@pytest.fixture
def machine(tmp_path):
    """A copy of one recorded row with its plan and problem, to be edited."""
    for folder in ("schedules", "instances"):
        place = tmp_path / folder / ROW.with_suffix(".json")
        place.parent.mkdir(parents=True)
        shutil.copy(RECORDED / folder / ROW.with_suffix(".json"), place)
    shutil.copytree(RECORDED / "runs" / ROW, tmp_path / "runs" / ROW)
    return tmp_path


@pytest.fixture
def edited(machine):
    """Change fields of the recorded row; return its file."""

    def edit(change):
        path = machine / "runs" / ROW / "record.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
        return path

    return edit


def test_a_record_as_it_was_made_is_read(edited):
    (record,) = read_runs([edited(lambda v: None)])
    assert record.system == "lazytrain"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("complete = False", lambda v: v.update(complete=False)),
        ("tflops = 999.0", lambda v: v.update(tflops=999.0)),
        ("tflops = None", lambda v: v.update(tflops=None)),
        ("step_s = -1.0", lambda v: v.update(step_s=-1.0)),
        ("tokens_per_s = 11700.0", lambda v: v.update(tokens_per_s=11700.0)),
        ("padded_tokens_per_s", lambda v: v.update(batch=96)),
        ("padded_tokens_per_s", lambda v: v.update(step_s=12.0)),
        ("tflops", lambda v: v.update(num_parameters=7_000_000_000)),
        ("master = ''", lambda v: v.update(master="")),
        ("optimizer_state = ''", lambda v: v.update(optimizer_state="")),
        ("reason = None", lambda v: v.update(status="host_oom")),
        ("plan_sha256 = '00'", lambda v: v.update(plan_sha256="00")),
        ("plan_sha256 = None", lambda v: v.update(plan_sha256=None)),
        (
            "made_from.plan = '00'",
            lambda v: v["provenance"]["made_from"].update(plan="00"),
        ),
    ],
)
def test_a_changed_value_is_refused_with_its_file(edited, field, change):
    path = edited(change)
    with pytest.raises(InvalidInput) as caught:
        read_runs([path])
    assert str(caught.value).startswith(field)
    assert str(path) in str(caught.value)


def test_a_system_that_does_not_exist_is_refused(make_record, tmp_path):
    path = tmp_path / "record.json"
    write(make_record("lazytrian"), path)
    with pytest.raises(InvalidInput, match="system = 'lazytrian': unknown system"):
        read_runs([path])


def test_a_record_in_the_folder_of_another_row_is_refused(edited):
    path = edited(lambda v: v.update(scale="8B"))
    with pytest.raises(InvalidInput, match="is the record of h200/8B/lazytrain"):
        read_runs([path])


def test_a_plan_that_is_gone_or_another_is_refused(edited, machine):
    path = edited(lambda v: None)
    plan = machine / "schedules" / ROW.with_suffix(".json")
    plan.write_text(plan.read_text() + "\n")
    with pytest.raises(InvalidInput, match=r"made_from\.plan"):
        read_runs([path])
    plan.unlink()
    with pytest.raises(InvalidInput, match=r"lazytrain\.json.*does not exist"):
        read_runs([path])


def test_a_plan_of_another_problem_is_refused(edited, machine):
    path = edited(lambda v: None)
    other = RECORDED / "instances" / "h200" / "7B" / "megatrain.json"
    shutil.copy(other, machine / "instances" / ROW.with_suffix(".json"))
    with pytest.raises(InvalidInput, match="instance_sha256"):
        read_runs([path])


def test_one_row_recorded_twice_is_refused_with_both_files(edited, machine):
    path = edited(lambda v: None)
    second = machine / "again" / "record.json"
    second.parent.mkdir()
    shutil.copy(path, second)
    with pytest.raises(InvalidInput, match="twice") as caught:
        read_runs([path, second])
    assert str(path) in str(caught.value)
    assert str(second) in str(caught.value)


def test_one_row_may_measure_and_train(make_record, tmp_path):
    for purpose in ("throughput", "quality"):
        write(make_record(purpose=purpose), tmp_path / purpose / "record.json")
    assert len(read_runs(sorted(tmp_path.glob("*/record.json")))) == 2


def test_a_run_over_its_cap_has_numbers_that_no_ratio_uses(make_record):
    over = make_record(status="host_oom")
    assert over.tflops == 161.4
    assert measured_number(over, "tflops") is None
    assert quotient(measured_number(over, "tflops"), 100.0) is None
    assert measured_number(make_record(), "tflops") == 161.4


@pytest.mark.parametrize("field", ["model", "stands_for", "seq_len"])
def test_a_record_of_another_row_is_refused(make_record, make_row, field):
    other = {"model": "Qwen2.5-7B", "stands_for": "Qwen2.5-7B", "seq_len": 2048}
    with pytest.raises(InvalidInput, match=f"^{field} = "):
        refuse_other_rows([make_record(**{field: other[field]})], [make_row()])
    refuse_other_rows([make_record(batch=36)], [make_row()])


def test_a_record_without_a_row_is_named(make_record, make_row):
    records = [make_record(), make_record("megatrain"), make_record("resident")]
    assert unlisted(records, [make_row()]) == [
        "gpu80/27B/megatrain",
        "gpu80/27B/resident",
    ]


def test_another_count_of_parameters_is_refused(make_record):
    with pytest.raises(InvalidInput, match="26895998464"):
        refuse_other_counts([make_record(num_parameters=27_000_000_000)])
    refuse_other_counts([make_record()])


def test_an_evaluation_counts_its_own_answers(make_evaluation, tmp_path):
    path = tmp_path / "eval.json"
    write(make_evaluation(), path)
    assert len(read_evaluations([path])) == 1
    write(make_evaluation(exact_match=0.6), path)
    with pytest.raises(InvalidInput, match=r"exact_match = 0\.6.*eval\.json"):
        read_evaluations([path])
    write(make_evaluation(), path)
    with pytest.raises(InvalidInput, match="twice"):
        read_evaluations([path, path])


def test_recorded_answers_are_those_that_are_counted(tmp_path):
    source = RECORDED / "trial" / "135M" / "megatrain" / "eval.json"
    assert read_evaluations([source])[0].exact_match == pytest.approx(46 / 1319)
    values = json.loads(source.read_text())
    wrong = next(p for p in values["predictions"] if not p["correct"])
    wrong["correct"] = True
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidInput, match="47 correct answers"):
        read_evaluations([path])


def test_a_table_names_the_record_of_each_cell(make_record, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    path, out = tmp_path / "record.json", tmp_path / "table3.csv"
    write(
        make_record(status="oom", batch=72, requested_bytes=3 * 10**9),
        path,
    )
    words = ("table3", path, "--accelerator", "gpu80", "--scale", "27B", "--out", out)
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    assert result.exit_code == 0, result.output
    lines = [line.split(",") for line in out.read_text().splitlines()]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    shown = {row["system"]: row["record"] for row in rows}
    assert shown == {"zero3-offload": "", "megatrain": "", "lazytrain": str(path)}
    (row,) = (row for row in rows if row["system"] == "lazytrain")
    assert (row["tflops"], row["refused_gpu_gb"]) == ("OOM@72", "3.0")
    assert row["asked_host_gb"] == ""


def test_one_machine_is_profiled_once():
    profile = RECORDED / "profile" / "h200" / "hardware.json"
    layers = sorted(RECORDED.glob("profile/*/*/layers.json"))
    assert len(read_profiles(HardwareProfile, [profile])) == 1
    assert len(read_profiles(LayerProfile, layers)) == len(layers) > 3
    with pytest.raises(InvalidInput, match=r"'h200'.*twice"):
        read_profiles(HardwareProfile, [profile, profile])
    with pytest.raises(InvalidInput, match="twice"):
        read_profiles(LayerProfile, [layers[0], *layers])


@pytest.mark.parametrize("name", ["glance", "benchmarked", "differences"])
def test_a_folder_that_is_none_renews_no_document(name, tmp_path):
    document = tmp_path / "README.md"
    document.write_text("as it was")
    words = ["report", name, str(tmp_path / "none"), "--document", str(document)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "none" in result.output
    assert document.read_text() == "as it was"
