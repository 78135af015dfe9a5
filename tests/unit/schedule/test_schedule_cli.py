"""The planner's commands, end to end through files."""

from __future__ import annotations

import json
import sys

import pytest
import yaml
from typer.testing import CliRunner

from lazytrain import records
from lazytrain.commands import estimate as estimate_commands
from lazytrain.commands import schedule as schedule_commands
from lazytrain.commands import tight as tight_commands
from lazytrain.errors import InvalidInput, NoSchedule, PlanMismatch, SolverMissing
from lazytrain.schedule.check import PlanViolation
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.solve import solve

RUNNER = CliRunner()


def run(*arguments: object, app=schedule_commands.app):
    """Run a command; a user's error is raised, exit codes are returned."""
    result = RUNNER.invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def instance_file(make_instance, tmp_path):
    path = tmp_path / "instance.json"
    records.write(make_instance(), path)
    return path


def test_solve_check_simulate_render(instance_file, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("solve", instance_file, "--out", plan).exit_code == 0
    report = tmp_path / "report.json"
    assert run("check", plan, instance_file, "--out", report).exit_code == 0
    assert json.loads(report.read_text())["violations"] == []
    trace, figure = tmp_path / "trace.json", tmp_path / "gantt.svg"
    result = run("simulate", plan, instance_file, "--trace", trace, "--figure", figure)
    assert json.loads(result.stdout)["step_s"] > 0
    assert trace.exists()
    assert figure.exists()
    assert run("render", plan, "--out", tmp_path / "plan.svg").exit_code == 0
    assert "recomputed" in (tmp_path / "plan.svg").read_text()


def test_check_exits_1_and_names_the_violation(instance_file, tmp_path):
    plan = tmp_path / "plan.json"
    run("solve", instance_file, "--out", plan)
    broken = records.read(Plan, plan)
    cut = broken.model_copy(update={"transfers": broken.transfers[1:]})
    records.write(cut, plan)
    result = run("check", plan, instance_file)
    assert result.exit_code == 1
    assert "[transfer]" in result.stderr


def test_a_refuted_plan_is_simulated_only_if_asked(instance_file, tmp_path):
    plan = tmp_path / "plan.json"
    run("solve", instance_file, "--out", plan)
    solved = records.read(Plan, plan)
    records.write(solved.model_copy(update={"transfers": solved.transfers[1:]}), plan)
    with pytest.raises(PlanViolation, match=r"\[transfer\]"):
        run("simulate", plan, instance_file)
    assert run("simulate", plan, instance_file, "--unchecked").exit_code == 0
    table = ("windows", plan, instance_file, "--out", tmp_path / "table.csv")
    with pytest.raises(PlanViolation, match=r"\[transfer\]"):
        run(*table, app=tight_commands.app)
    assert not (tmp_path / "table.csv").exists()


def test_a_plan_of_another_instance_is_not_simulated(make_instance, tmp_path):
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    records.write(make_instance(name="one"), tmp_path / "one.json")
    records.write(make_instance(name="two", layers=3), other)
    run("solve", tmp_path / "one.json", "--out", plan)
    with pytest.raises(PlanMismatch, match="another instance"):
        run("simulate", plan, other)


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--time-limit-s", "nan", "time-limit-s"),
        ("--gap", "nan", "gap"),
        ("--seed", "99999999999", "seed"),
    ],
)
def test_limits_without_sense_are_refused(
    instance_file, tmp_path, option, value, field
):
    plan = tmp_path / "plan.json"
    with pytest.raises(InvalidInput, match=field):
        run("solve", instance_file, "--out", plan, option, value)


def test_an_infeasible_instance_writes_no_plan(make_instance, tmp_path):
    path, plan = tmp_path / "instance.json", tmp_path / "plan.json"
    records.write(make_instance(budget_bytes={"gpu": 1, "cpu": 0, "nvme": 0}), path)
    with pytest.raises(NoSchedule, match="GPU budget"):
        run("solve", path, "--out", plan)
    assert not plan.exists()


def test_compare_prints_every_method(instance_file):
    lines = run("compare", instance_file).stdout.splitlines()
    assert lines[0].startswith("method,status,gpu")
    methods = [line.split(",")[0] for line in lines[1:]]
    assert methods == [
        "milp",
        "keep-all",
        "recompute-all",
        "sqrt-l",
        "greedy",
        "fixed-interval:4",
    ]


def test_instance_is_derived_from_files(
    hardware, layers, make_row, make_config, tmp_path
):
    records.write(hardware, tmp_path / "hardware.json")
    records.write(layers, tmp_path / "layers.json")
    row = make_row().model_dump()
    sheet = "\t".join(row) + "\n" + "\t".join(map(str, row.values())) + "\n"
    (tmp_path / "runs.tsv").write_text(sheet)
    config = make_config().model_dump(mode="json")
    config["runs"] = str(tmp_path / "runs.tsv")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    common = [
        *("instance", "--hardware", tmp_path / "hardware.json"),
        *("--layers", tmp_path / "layers.json", "--config", tmp_path / "config.yaml"),
        *("--accelerator", "cpu", "--scale", "27B"),
    ]
    out = tmp_path / "instance.json"
    assert run(*common, "--system", "lazytrain", "--out", out).exit_code == 0
    made_from = json.loads(out.read_text())["made_from"]
    assert made_from["layers"] == records.sha256_file(tmp_path / "layers.json")
    with pytest.raises(InvalidInput, match="no-such"):
        run(*common, "--system", "no-such", "--out", out)


def test_estimate_and_fit_need_only_a_configuration(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    app = estimate_commands.app
    options = ("--gpu-memory", "8GiB", "--cpu-memory", "16GiB")
    answer = json.loads(run("estimate", path, *options, "--json", app=app).stdout)
    assert answer["num_parameters"] == 134_515_008
    text = run("estimate", tmp_path, *options, "--h2d", "12GB/s", app=app).stdout
    assert "largest batch" in text
    found = json.loads(run("fit", path, *options, "--json", app=app).stdout)
    assert found["batch"] == answer["largest_batch"]


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--gpu-memory", "80", "gpu-memory"),
        ("--h2d", "12GB", "h2d"),
        ("--h2d", "0GB/s", "h2d"),
        ("--tflops", "0", "tflops"),
        ("--tflops", "nan", "tflops"),
        ("--update-rate", "inf", "update-rate"),
    ],
)
def test_options_without_sense_are_refused_by_name(option, value, field):
    with pytest.raises(InvalidInput, match=field):
        run("estimate", "Qwen2.5-7B", option, value, app=estimate_commands.app)


def test_unknown_models_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    for model in ("no/such/config.json", str(tmp_path)):
        with pytest.raises(InvalidInput, match="model"):
            run("estimate", model, app=estimate_commands.app)


def test_a_missing_solver_is_no_missing_schedule(
    monkeypatch, hardware, layers, make_row, make_config
):
    """Not an answer about the problem: `--allow-none` must not write it down as one."""
    instance = derive_instance(hardware, layers, make_row(), make_config("64MiB"))
    monkeypatch.setitem(sys.modules, "pyscipopt", None)
    with pytest.raises(SolverMissing, match="pip install pyscipopt"):
        solve(instance, method="milp")
