"""Rows of the sheet without Snakemake: the rules' commands, limits, no early stop."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from measured import hardware_profile, layer_profile

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow, load_runs, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.records import write
from lazytrain.train.sheet import Limits, Sheet, choose, perform
from lazytrain.train.stages import (
    Folder,
    Stage,
    operator_stages,
    plan_stages,
    profile_stages,
    run_stage,
    split_stage,
)

ROOT = Path(__file__).parents[3]
STAGES = ("data", "profile", "schedule", "train")
RULES = "\n".join(
    (ROOT / "workflow" / "rules" / f"{name}.smk").read_text() for name in STAGES
)


@pytest.fixture
def folder(tmp_path):
    config = ROOT / "config" / "config.yaml"
    return Folder(tmp_path, config, load_yaml(PipelineConfig, config))


def row(system="lazytrain", accelerator="h200-cap70", scale="3B", batch=192):
    return RunRow(
        accelerator=accelerator,
        scale=scale,
        system=system,
        model="Qwen2.5-3B",
        stands_for="Qwen2.5-3B",
        batch=batch,
        seq_len=1024,
    )


def options(words):
    return {word for word in words if word.startswith("--")}


def rule_options(command):
    """Return the options of a rule's shell text, by the command it starts with."""
    texts = re.findall(r"shell:\n((?:\s+\".*\"\n)+)", RULES + "\n")
    joined = ["".join(re.findall(r'"(.*)"', text)) for text in texts]
    (text,) = {t for t in joined if t.startswith(f"lazytrain {command}")}
    return options(text.split())


def test_each_stage_has_the_options_of_its_rule(folder):
    chain = [split_stage(folder), *profile_stages(folder, row())]
    chain += plan_stages(folder, row())
    by_name = {stage.name: options(stage.words) for stage in chain}
    assert by_name["split"] == rule_options("data split")
    assert by_name["profile hardware"] == rule_options("profile hardware")
    assert by_name["profile layers"] == rule_options("profile layers")
    assert by_name["instance"] == rule_options("instance")
    assert by_name["solve"] == rule_options("solve")
    assert by_name["check"] == rule_options("check")


def test_a_run_has_its_rule_s_options_and_a_plan_only_where_one_is_solved(folder):
    text = re.search(r'"lazytrain run .*?--purpose throughput.*?2>', RULES, re.S)[0]
    shared = options(re.findall(r"[\w-]+", text))
    for name in systems.NAMES:
        words = run_stage(folder, row(name)).words
        of_plan = {"--plan", "--instance"} & set(words)
        assert options(words) == shared | of_plan
        assert len(of_plan) == 2 * systems.is_planned(name)
        assert bool(plan_stages(folder, row(name))) == systems.is_planned(name)


def test_a_machine_is_measured_once_for_all_caps(folder):
    hardware, layers = profile_stages(folder, row())
    assert "--from" not in (*hardware.words, *layers.words)
    write(hardware_profile(), folder.hardware("h200"))
    write(layer_profile(), folder.layers("h200", "3B"))
    hardware, layers = profile_stages(folder, row())
    assert "--from" in hardware.words
    assert "--from" in layers.words
    # Another host is another machine, with the same device.
    of_7b = {"scale": "7B", "model": "Qwen2.5-7B", "tokens": 24576}
    write(layer_profile().model_copy(update=of_7b), folder.layers("h200", "7B"))
    large = row(accelerator="h200-256g", scale="7B")
    hardware, layers = profile_stages(folder, large)
    assert "--from" not in hardware.words
    assert "--from" in layers.words


OTHERWISE = [
    {"tokens": 8192},
    {"seq_len": 512},
    {"dtype": "float32"},
    {"body": "eager"},
    {"model": "Qwen2.5-7B"},
    {"accelerator": "gpu80"},
]


@pytest.mark.parametrize("change", OTHERWISE, ids=str)
def test_layers_are_measured_anew_where_they_ran_otherwise(folder, change):
    other = layer_profile().model_copy(update=change)
    write(other, folder.layers("aaa", "3B"))
    _, layers = profile_stages(folder, row())
    assert "--from" not in layers.words
    # One that fits is found behind it.
    write(layer_profile(), folder.layers("h200", "3B"))
    _, layers = profile_stages(folder, row())
    assert layers.words[layers.words.index("--from") + 1] == str(
        folder.layers("h200", "3B")
    )


def test_a_small_cap_runs_fewer_tokens_at_a_time(folder):
    """Under 24 GiB the largest batch of 3B is 8: 8,192 tokens, not 32,768."""
    write(hardware_profile(), folder.hardware("h200"))
    write(layer_profile(), folder.layers("h200", "3B"))
    rival = row("megatrain", accelerator="h200-cap24", batch=7)
    stages = profile_stages(folder, rival)
    assert ["--from" in stage.words for stage in stages] == [True, False]


def test_a_profile_that_cannot_be_read_is_none(folder, caplog):
    for path in (folder.hardware("aaa"), folder.layers("aaa", "3B")):
        path.parent.mkdir(parents=True)
        path.write_text("{")
    stages = profile_stages(folder, row())
    assert not any("--from" in stage.words for stage in stages)
    assert str(folder.hardware("aaa")) in caplog.text
    assert str(folder.layers("aaa", "3B")) in caplog.text
    # Where this id's own are there, nobody looks.
    write(hardware_profile(), folder.hardware("h200-cap70"))
    write(layer_profile(), folder.layers("h200-cap70", "3B"))
    caplog.clear()
    assert all(stage.is_done for stage in profile_stages(folder, row()))
    assert caplog.text == ""


def test_operators_are_built_for_the_rows_that_need_them(folder):
    assert operator_stages(folder, [row(), row("resident")]) == []
    assert operator_stages(folder, [row("megatrain", accelerator="cpu")]) == []
    (stage,) = operator_stages(folder, [row("megatrain")])
    assert "--nvme" not in stage.words
    (stage,) = operator_stages(folder, [row("zero-infinity")])
    assert "--nvme" in stage.words


def test_rows_come_in_the_order_asked_for():
    rows = load_runs(ROOT / "config" / "runs.tsv")
    chosen = choose(rows, "cpu", ["7B", "3B"], "megatrain,lazytrain")
    assert [(r.scale, r.system) for r in chosen] == [
        ("7B", "megatrain"),
        ("7B", "lazytrain"),
        ("3B", "megatrain"),
        ("3B", "lazytrain"),
    ]
    with pytest.raises(InvalidInput, match=r"cpu/3B/nothing.*the sheet has: lazytrain"):
        choose(rows, "cpu", ["3B"], "nothing")


def test_an_unknown_scale_is_an_error_even_where_all_systems_are_meant():
    sheet = [row(), row(scale="7B")]
    with pytest.raises(InvalidInput, match=r"99B.*h200-cap70 has: 3B, 7B"):
        choose(sheet, "h200-cap70", ["99B"], "")
    with pytest.raises(InvalidInput, match="cpu has: no rows"):
        choose(sheet, "cpu", ["3B"], "")


def test_a_failing_stage_says_why(tmp_path):
    stage = Stage("check", ("check", "no.json", "no.json"), tmp_path / "out")
    reason = perform(stage, tmp_path / "log", None)
    assert "check ended with code 2" in reason
    assert "no.json" in reason


def test_a_stage_over_its_limit_is_killed_with_all_it_started(tmp_path):
    # A solve that needs its whole time; a child of its own would be killed as well.
    stage = Stage(
        "published", ("published", "--out-dir", str(tmp_path)), tmp_path / "x"
    )
    reason = perform(stage, tmp_path / "log", 0.2)
    assert "killed: published was over" in reason
    assert not list(tmp_path.rglob("*.csv"))
    left = psutil.Process().children(recursive=True)
    assert not [p for p in left if "published" in " ".join(p.cmdline())]


def test_one_bad_row_stops_no_other(folder, capsys, tmp_path):
    settings = folder.settings.model_copy(update={"data": "/nonexistent"})
    broken = Folder(folder.results, tmp_path / "no.yaml", settings)
    rows = [row("resident"), row("lazytrain")]
    done = run_stage(broken, rows[1])
    done.output.parent.mkdir(parents=True)
    done.output.write_text("not JSON")
    missing = Sheet(broken, rows, Limits()).measure()
    assert missing == rows[:1]
    said = capsys.readouterr().err.splitlines()
    assert "h200-cap70/3B/resident: split ended with code 2" in said[0]
    assert "not a record" in said[1]


def test_nothing_starts_when_the_time_is_used_up(folder, capsys):
    missing = Sheet(folder, [row("resident")], Limits(0, 1e-9)).measure()
    assert len(missing) == 1
    assert "not started" in capsys.readouterr().err


@pytest.mark.slow
def test_the_cpu_sheet_is_measured_from_nothing(tmp_path):
    command = [sys.executable, "-m", "lazytrain", "sheet", "--accelerator", "cpu"]
    command += ["--scale", "3B", "--system", "lazytrain,megatrain", "--limit-s", "300"]
    command += ["--config", "config/config.yaml", "--results", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": ok, ") == 2
    assert len(list(tmp_path.glob("runs/cpu/3B/*/record.json"))) == 2
