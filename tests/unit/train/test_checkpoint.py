"""Checkpoints are whole or skipped, hold what they say, and carry over plans."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from streaming import plan_for, small_config
from test_checkpoint_kill import STEPS, make_request, numbers

from lazytrain.errors import InvalidInput
from lazytrain.records import write
from lazytrain.train import checkpoint
from lazytrain.train.checkpoint import Broken, Content, TrainingState
from lazytrain.train.randomness import random_state, set_random_state
from lazytrain.train.run import run_row
from lazytrain.train.tensor_files import shards, write_shards, write_tensors

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int16,
    torch.uint8,
    torch.int64,
    torch.bool,
)


def content(step: int, value: float = 0.0) -> Content:
    state = TrainingState(
        step=step,
        applied_steps=step,
        num_steps=10,
        learning_rate=0.1,
        position={"epoch": 0, "taken": 2 * step},
        random=random_state(),
        seed=0,
        rows_sha256="",
        plan_sha256=None,
        config_sha256="",
        planning_sha256="",
        num_parameters=1,
        dtype="float32",
        master="fp32",
        optimizer_state="fp32",
    )

    def save_model(folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    return Content(
        state=state,
        weights={f"w{n}": torch.full((50,), value + n) for n in range(4)},
        optimizer={"a/exp_avg": torch.full((9,), value), "a/code": torch.zeros(0)},
        steps=(),
        documents={"plan.json": "{}\n"},
        save_model=save_model,
    )


def test_files_hold_every_dtype_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    flat = torch.randint(0, 100, (64,))
    tensors = {str(kind): flat.to(kind).view(4, 16) for kind in DTYPES}
    tensors |= {"empty": torch.zeros(0), "scalar": torch.tensor(2.5)}
    tensors["slice"] = torch.arange(40.0)[3:9]
    tensors["turned"] = torch.arange(12.0).view(3, 4).T
    written = write_tensors(tmp_path / "x", tensors)
    read = load_file(tmp_path / "x")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name
    assert written.size_bytes == (tmp_path / "x").stat().st_size
    # The view of six elements was not written with the buffer it lies in.
    assert written.size_bytes < 3000


def test_shards_lose_nothing_and_stay_small(tmp_path):
    tensors = {f"t{n}": torch.full((n * 10,), float(n)) for n in range(9)}
    parts = shards(tensors.items(), 1000)
    assert [name for part in parts for name in part] == list(tensors)
    for part in parts:
        size = sum(tensor.nbytes for tensor in part.values())
        assert size <= 1000 or len(part) == 1
    sums, where = write_shards(tmp_path, "m", tensors.items(), 1000)
    assert len(sums) == len(parts) > 1
    for name, file in where.items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_the_newest_whole_one_is_taken_and_the_last_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, content(step, float(step)), keep_last=2)
    found, skipped = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.state.step, skipped) == (4, {})
    assert torch.equal(found.weights["w3"], torch.full((50,), 7.0))
    assert torch.equal(found.optimizer["a/exp_avg"], torch.full((9,), 4.0))
    assert found.optimizer["a/code"].numel() == 0
    assert found.document("plan.json") == "{}\n"
    assert found.document("other.json") is None
    names = [path.name for path in checkpoint.folders(tmp_path)]
    assert names == ["step-000004", "step-000003"]


def spoil_nothing_written(folder):
    (folder / "complete").unlink()


def spoil_short(folder):
    path = folder / "model-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def spoil_bit(folder):
    path = folder / "optimizer-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def spoil_missing(folder):
    (folder / "hf" / "config.json").unlink()


def spoil_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"step', '"stop').replace("1", "2"))


def spoil_complete(folder):
    (folder / "complete").write_bytes(b"\xff\xfe")


def spoil_state(folder):
    path = folder / "state.json"
    path.write_text(path.read_text().replace("0.1", "0.2"))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_nothing_written, "not completed"),
        (spoil_short, "bytes"),
        (spoil_bit, "optimizer-00001.safetensors has another sha256"),
        (spoil_missing, "hf/config.json is missing"),
        (spoil_manifest, "manifest.json"),
        (spoil_complete, "not completed"),
        (spoil_state, "state.json has another sha256"),
    ],
)
def test_a_spoilt_one_is_skipped_with_the_reason(tmp_path, spoil, reason):
    checkpoint.save(tmp_path, content(1), keep_last=3)
    last = checkpoint.save(tmp_path, content(2), keep_last=3)
    spoil(last)
    found, skipped = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.state.step == 1
    assert list(skipped) == [last]
    assert reason in skipped[last]
    # Going on from step 1, step 2 is saved again and is whole then.
    checkpoint.save(tmp_path, content(2), keep_last=3)
    again, skipped = checkpoint.newest(tmp_path)
    assert again is not None
    assert (again.state.step, skipped) == (2, {})


def test_a_broken_later_one_never_crowds_out_a_whole_one(tmp_path):
    checkpoint.save(tmp_path, content(1), keep_last=1)
    checkpoint.save(tmp_path, content(9), keep_last=2)
    spoil_bit(tmp_path / "step-000009")
    checkpoint.save(tmp_path, content(2), keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    checkpoint.open_whole(tmp_path / "step-000002")


def test_a_resumed_run_tidies_up_but_spares_what_is_later(tmp_path):
    for step in (1, 2, 3, 9):
        checkpoint.save(tmp_path, content(step), keep_last=9)
    checkpoint.prune(tmp_path, 1, 3, spare_later=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000003", "step-000009"]


def test_a_future_version_is_refused(tmp_path):
    folder = checkpoint.save(tmp_path, content(1), keep_last=1)
    text = (folder / "state.json").read_text()
    state = json.loads(text) | {"version": 2}
    newer = content(1)
    newer.documents["state.json"] = json.dumps(state)
    folder = checkpoint.save(tmp_path, newer, keep_last=1)
    with pytest.raises(Broken, match="version"):
        checkpoint.open_whole(folder)


def test_a_full_disk_leaves_the_older_one_and_no_partial(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, content(1), keep_last=1)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_shards", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, content(2), keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_every_generator_goes_on_where_it_was():
    state = random_state()

    def draw():
        return torch.rand(3).tolist(), random.random(), np.random.rand()  # noqa: NPY002

    first = draw()
    assert draw() != first
    set_random_state(type(state).model_validate_json(state.model_dump_json()))
    assert draw() == first


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps with all its checkpoints."""
    folder = tmp_path_factory.mktemp("finished")
    request = make_request(folder, keep_checkpoints=9)
    run_row(request)
    return folder, request


def cut(folder: Path, out: Path, step: int) -> None:
    """Copy a run as it was after ``step`` steps."""
    shutil.copytree(folder / "out", out)
    for path in checkpoint.folders(out / "checkpoints"):
        if checkpoint.step_of(path) > step:
            shutil.rmtree(path)


@pytest.mark.parametrize(
    ("homes", "fields"),
    [
        ("GGGGGGG", {"micro_batch": 2}),
        ("CCCCCCG", {"micro_batch": 1, "prefetch_distance": 0}),
        ("GRRCRRG", {"micro_batch": 2, "order": "batch-major"}),
        ("NGNGCRG", {"micro_batch": 1}),
    ],
)
def test_another_plan_goes_on_with_the_same_losses(finished, tmp_path, homes, fields):
    folder, request = finished
    cut(folder, tmp_path / "out", 2)
    plan = plan_for(
        small_config(), homes, batch=2, seq_len=48, state="hybrid", **fields
    )
    write(plan, tmp_path / "plan.json")
    config = request.config.model_copy(update={"scratch": str(tmp_path / "nvme")})
    (tmp_path / "nvme").mkdir()
    changes = {
        "out": tmp_path / "out",
        "plan": tmp_path / "plan.json",
        "config": config,
    }
    run_row(request.model_copy(update=changes))
    expected, found = numbers(folder / "out"), numbers(tmp_path / "out")
    assert found[:2] == expected[:2]
    for one, other in zip(found, expected, strict=True):
        assert one[1] == pytest.approx(other[1], rel=1e-6)


def test_bf16_weights_go_on_with_their_split_master(tmp_path):
    request = make_request(tmp_path, keep_checkpoints=9)
    settings = request.config.accelerators["cpu"]
    executor = settings.executor.model_copy(update={"dtype": "bfloat16"})
    changed = {"cpu": settings.model_copy(update={"executor": executor})}
    config = request.config.model_copy(update={"accelerators": changed})
    request = request.model_copy(update={"config": config})
    run_row(request)
    saved = checkpoint.open_whole(request.out / "checkpoints" / "step-000002")
    assert saved.weights["model.norm.weight"].dtype == torch.bfloat16
    assert saved.optimizer["head/remainder"].any()
    again = tmp_path / "again"
    cut(tmp_path, again, 2)
    run_row(request.model_copy(update={"out": again}))
    assert numbers(again) == numbers(request.out)
    for name in ("model-00001.safetensors", "optimizer-00001.safetensors"):
        file = Path("checkpoints") / "step-000004" / name
        assert (again / file).read_bytes() == (request.out / file).read_bytes()


def test_half_written_weights_of_a_killed_run_are_removed(finished, tmp_path):
    folder, request = finished
    cut(folder, tmp_path / "out", 4)
    left = tmp_path / "out" / ".weights.abc"
    left.mkdir()
    run_row(request.model_copy(update={"out": tmp_path / "out"}))
    assert not left.exists()
    assert numbers(tmp_path / "out") == numbers(folder / "out")


def test_a_run_can_go_on_elsewhere_from_a_checkpoint_named(finished, tmp_path):
    folder, request = finished
    for number, given in enumerate(("out/checkpoints/step-000003", "out")):
        out = tmp_path / str(number)
        changes = {"out": out, "resume": str(folder / given)}
        record = run_row(request.model_copy(update=changes))
        assert numbers(out) == numbers(folder / "out")
        assert record.num_steps == STEPS


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"optimizer": {"type": "adamw", "threads": 1}}, None),
        ({"optimizer": {"type": "cpu_adamw_8bit", "threads": 1}}, None),
    ],
)
def test_what_would_change_the_course_is_refused(finished, tmp_path, change, name):
    folder, request = finished
    cut(folder, tmp_path / "out", 2)
    config = type(request.config).model_validate(
        request.config.model_dump(mode="json") | change
    )
    given = request.model_copy(update={"out": tmp_path / "out", "config": config})
    if name is None:
        # The plan, not the settings, says which format a planned engine has.
        state = "fp32" if change["optimizer"]["type"] == "adamw" else "8bit"
        plan = plan_for(small_config(), "GGGGGGG", batch=2, seq_len=48, state=state)
        write(plan, tmp_path / "plan.json")
        given = given.model_copy(update={"plan": tmp_path / "plan.json"})
        name = "optimizer_state"
    with pytest.raises(InvalidInput, match=name):
        run_row(given)


def test_a_new_run_does_not_mix_with_an_old_ones_checkpoints(finished):
    _, request = finished
    with pytest.raises(InvalidInput, match="earlier run"):
        run_row(request.model_copy(update={"resume": "never"}))
    with pytest.raises(InvalidInput, match="no whole checkpoint"):
        run_row(request.model_copy(update={"resume": "/nowhere"}))


def test_a_system_without_state_to_save_is_refused_by_name(tmp_path):
    request = make_request(tmp_path)
    row = request.row.model_copy(update={"system": "megatrain"})
    with pytest.raises(InvalidInput, match="megatrain cannot be saved"):
        run_row(request.model_copy(update={"row": row}))
