"""A plan that a user gives is checked, always, before anything runs along it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from measured import hardware_profile, layer_profile
from typer.testing import CliRunner

from lazytrain.cli import root
from lazytrain.config import PipelineConfig, RunRow, load_runs, load_yaml
from lazytrain.errors import InvalidInput, PlanMismatch
from lazytrain.records import RunRecord, read, write
from lazytrain.schedule.check import PlanViolation
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.no_plan import NoPlan
from lazytrain.schedule.plan import Home, Plan
from lazytrain.train.finetune import fine_tune
from lazytrain.train.finetune_settings import FineTune
from lazytrain.train.given_plan import Origin, check_given

CONFIG: dict[str, Any] = {
    "accelerator": "cpu",
    "synthetic": {"num_questions": 60},
    "optimizer": {"threads": 1},
    "accelerators": {
        "cpu": {
            "executor": {"micro_batch_tokens": 512, "chunk_bytes": "1MiB"},
            "budgets": {"gpu_cap": "24MiB", "cpu_activations": "4MiB"},
            "throughput": {"num_steps": 1, "warmup_steps": 0, "learning_rate": 1e-3},
            "quality": {"num_steps": 1, "warmup_steps": 0, "learning_rate": 1e-3},
        }
    },
}
HEAD = "accelerator scale system model stands_for batch seq_len table3 table4 table5"
ROW = "cpu 3B lazytrain 3B-mini Qwen2.5-3B 2 256 true false false"


def call(*words: object) -> None:
    """Run a command; a user's error is raised."""
    result = CliRunner().invoke(root, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception


def configure(folder: Path, row: str = ROW, **changes: dict[str, str]) -> None:
    """Write the configuration and the sheet, with other budgets or executor."""
    cpu = dict(CONFIG["accelerators"]["cpu"])
    for name, fields in changes.items():
        cpu[name] = cpu[name] | fields
    values = CONFIG | {"accelerators": {"cpu": cpu}, "runs": str(folder / "runs.tsv")}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    lines = (HEAD, row)
    text = "".join("\t".join(line.split()) + "\n" for line in lines)
    (folder / "runs.tsv").write_text(text)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with profiles, and a row's instance and plan."""
    folder = tmp_path_factory.mktemp("planned")
    configure(folder)
    write(hardware_profile("cpu", gpu_memory_bytes=0), folder / "hardware.json")
    layers = layer_profile("3B", "3B-mini", "cpu", micro_batch=2)
    plain = {"dtype": "float32", "body": "eager"}
    costs = [
        cost.model_copy(update={"weight_bytes": 4 * cost.num_parameters})
        for cost in layers.layers
    ]
    layers = layers.model_copy(update=plain | {"layers": tuple(costs)})
    write(layers, folder / "layers.json")
    plan(folder)
    return folder


def plan(folder: Path) -> None:
    """Pose and solve the sheet's row, as the workflow does."""
    call(
        *("instance", "--hardware", folder / "hardware.json"),
        *("--layers", folder / "layers.json", "--config", folder / "config.yaml"),
        *("--accelerator", "cpu", "--scale", "3B", "--system", "lazytrain"),
        *("--out", folder / "instance.json"),
    )
    call("solve", folder / "instance.json", "--out", folder / "plan.json")


@pytest.fixture
def folder(planned: Path, tmp_path: Path) -> Path:
    """Return a copy of it for one test."""
    copy = tmp_path / "here"
    shutil.copytree(planned, copy)
    configure(copy)
    return copy


def run(folder: Path, *options: object) -> RunRecord:
    """Run the row; return its record."""
    call(
        *("run", "--config", folder / "config.yaml", "--accelerator", "cpu"),
        *("--scale", "3B", "--system", "lazytrain", "--split", folder / "split.json"),
        *("--rows", folder / "rows.jsonl", "--out", folder / "out", *options),
    )
    return read(RunRecord, folder / "out" / "record.json")


def given(folder: Path) -> tuple[Path, RunRow, PipelineConfig]:
    """Return the arguments of a check: plan, row and settings."""
    config = load_yaml(PipelineConfig, folder / "config.yaml")
    return folder / "plan.json", load_runs(folder / "runs.tsv")[0], config


def test_a_plan_that_is_the_row_s_own_is_run(folder: Path) -> None:
    call(
        *("data", "split", "--config", folder / "config.yaml"),
        *("--out", folder / "split.json", "--rows", folder / "rows.jsonl"),
    )
    record = run(folder, "--plan", folder / "plan.json")
    assert record.status == "ok"
    assert record.plan_sha256 == read(Plan, folder / "plan.json").sha256


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (ROW.replace(" 2 256", " 4 256"), {}, "batch = 2, but the row asks for 4"),
        (ROW.replace(" 256", " 128"), {}, "seq_len = 256, but the row asks for 128"),
        (ROW.replace("3B-mini", "7B-mini"), {}, "model = 3B-mini, .* 7B-mini"),
        (ROW, {"budgets": {"gpu_cap": "16MiB"}}, "gpu_cap = 24.* but .* 16"),
        (ROW, {"budgets": {"cpu_activations": "1MiB"}}, "cpu_activations = 4"),
        (ROW, {"executor": {"micro_batch_tokens": "256"}}, "micro_batch = 2, .* 1"),
    ],
)
def test_a_plan_of_another_row_or_budget_is_not_run(
    folder: Path, row: str, changes: dict[str, dict[str, str]], message: str
) -> None:
    configure(folder, row, **changes)
    with pytest.raises(PlanMismatch, match=message):
        run(folder, "--plan", folder / "plan.json")
    assert not (folder / "out").exists()


def edited(folder: Path) -> None:
    """Move a boundary of the plan to the host, blocks and all else left as they are."""
    solved = read(Plan, folder / "plan.json")
    first = next(i for i, home in enumerate(solved.homes) if home == Home.GPU)
    moved = solved.boundaries[first].model_copy(update={"home": Home.CPU})
    places = (*solved.boundaries[:first], moved, *solved.boundaries[first + 1 :])
    write(solved.model_copy(update={"boundaries": places}), folder / "plan.json")


@pytest.mark.parametrize("origin", ["beside", "named", "derived"])
def test_edited_homes_are_refused_wherever_the_instance_comes_from(
    folder: Path, origin: str
) -> None:
    words: dict[str, tuple[object, ...]] = {
        "beside": (),
        "named": ("--instance", folder / "other.json"),
        "derived": (
            *("--hardware", folder / "hardware.json"),
            *("--layers", folder / "layers.json"),
        ),
    }
    if origin != "beside":
        (folder / "instance.json").rename(folder / "other.json")
    found = Origin(
        *(folder / "other.json",) if origin == "named" else (None,),
        *(word for word in words["derived"][1::2] if origin == "derived"),
    )
    check_given(*given(folder), found)
    edited(folder)
    with pytest.raises(PlanViolation, match=r"\[transfer\] boundary \d+ \(cpu\)"):
        run(folder, "--plan", folder / "plan.json", *words[origin])
    assert not (folder / "out").exists()


def test_a_plan_without_an_instance_is_refused_with_three_ways_on(folder: Path) -> None:
    (folder / "instance.json").unlink()
    with pytest.raises(InvalidInput, match="instance = None") as caught:
        run(folder, "--plan", folder / "plan.json")
    for way in ("beside the plan as instance.json", "--instance", "--hardware and"):
        assert way in caught.value.remedy
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("plan_file", "instance_file"),
    [
        ("plan-2.json", "instance-2.json"),
        ("mine.json", "instance.json"),
        ("schedules/cpu/3B/lazytrain.json", "instances/cpu/3B/lazytrain.json"),
        ("schedules/solved/cpu/3B/x.json", "results/instances/cpu/3B/x.json"),
    ],
)
def test_an_instance_is_found_where_the_commands_leave_it(
    folder: Path, plan_file: str, instance_file: str
) -> None:
    for old, new in (("plan.json", plan_file), ("instance.json", instance_file)):
        (folder / new).parent.mkdir(parents=True, exist_ok=True)
        (folder / old).rename(folder / new)
    _, row, config = given(folder)
    check_given(folder / plan_file, row, config)
    (folder / instance_file).unlink()
    with pytest.raises(InvalidInput, match="instance"):
        check_given(folder / plan_file, row, config)


def test_a_plan_beside_another_instance_is_refused(folder: Path) -> None:
    instance = read(Instance, folder / "instance.json")
    changed = instance.model_copy(update={"lambda_n_s": 0.5})
    write(changed, folder / "instance.json")
    with pytest.raises(PlanViolation, match="made for instance"):
        run(folder, "--plan", folder / "plan.json")


@pytest.mark.parametrize("order", ["auto", "batch-major"])
def test_a_chosen_order_is_derived_from_profiles_without_a_solve(
    folder: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(folder, executor={"order": order, "micro_batch_tokens": "256"})
    plan(folder)
    monkeypatch.setattr("lazytrain.schedule.solve.solve_milp", None)
    profiles = Origin(None, folder / "hardware.json", folder / "layers.json")
    check_given(*given(folder), profiles)
    check_given(*given(folder))


def test_a_note_that_no_schedule_fits_is_the_run_s_to_record(folder: Path) -> None:
    write(NoPlan(name="x", reason="too small"), folder / "plan.json")
    check_given(*given(folder))


def test_options_that_would_be_ignored_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="give --plan too"):
        run(folder, "--instance", folder / "instance.json")
    with pytest.raises(InvalidInput, match="leave --plan or --search-batch out"):
        run(folder, "--plan", folder / "plan.json", "--search-batch", "1:2")


Tuned = Callable[..., FineTune]


@pytest.fixture
def tuned(folder: Path) -> Tuned:
    """Return a maker of fine-tunings along the folder's plan."""

    def make(**changes: object) -> FineTune:
        cpu = CONFIG["accelerators"]["cpu"]
        values = {
            "model": "3B-mini",
            "weights": "random",
            "accelerator": "cpu",
            "out": folder / "out",
            "batch": 2,
            "seq_len": 256,
            "num_steps": 1,
            "learning_rate": 1e-3,
            "plan": folder / "plan.json",
            "executor": cpu["executor"],
            "budgets": cpu["budgets"],
            "optimizer": CONFIG["optimizer"],
        }
        return FineTune.model_validate(values | changes)

    return make


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 4}, "batch = 2"),
        ({"seq_len": 128}, "seq_len = 256"),
        ({"model": "7B-mini"}, "model = 3B-mini"),
        ({"budgets": {"gpu_cap": "32MiB"}}, "gpu_cap"),
        ({"pack": True}, "gpu_cap = 24"),
    ],
)
def test_a_fine_tuning_does_not_run_along_another_s_plan(
    folder: Path, tuned: Tuned, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanMismatch, match=message):
        fine_tune(tuned(**changes))
    assert not (folder / "out" / "rows.jsonl").exists()


def test_a_fine_tuning_refuses_a_plan_that_nobody_can_check(
    folder: Path, tuned: Tuned
) -> None:
    edited(folder)
    with pytest.raises(PlanViolation, match=r"\[transfer\]"):
        fine_tune(tuned())
    (folder / "instance.json").unlink()
    with pytest.raises(InvalidInput, match="instance = None"):
        fine_tune(tuned())
