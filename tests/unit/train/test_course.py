"""A run goes on with the rows it had, or is refused by the name of what changed."""

from __future__ import annotations

import json
import shutil

import pytest
from test_checkpoint import content
from test_checkpoint_kill import make_request, numbers
from test_finetune import shortened
from typer.testing import CliRunner

from lazytrain.commands.train import app
from lazytrain.data.prompts import TEMPLATES, load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.train import checkpoint
from lazytrain.train.course import check_course, course_of
from lazytrain.train.request import RunRequest


@pytest.fixture(scope="module")
def request_of(tmp_path_factory):
    return make_request(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("random", 384)


def saved(request, tokenizer, folder, *, with_course=True) -> checkpoint.Checkpoint:
    """Save a checkpoint of the request's course, without training."""
    rows = json.loads(request.split.read_text())["train"]["sha256"]
    made = content(2)
    changes = {"rows_sha256": rows, "seed": request.config.seed}
    if with_course:
        changes["course"] = course_of(request, tokenizer)
    state = made.state.model_copy(update=changes)
    values = vars(made) | {"state": state}
    return checkpoint.open_whole(checkpoint.save(folder, type(made)(**values), 1))


def changed(request: RunRequest, name: str, value: object) -> RunRequest:
    for inner in ("row", "config"):
        owner = getattr(request, inner)
        if hasattr(owner, name):
            return request.model_copy(
                update={inner: owner.model_copy(update={name: value})}
            )
    return request.model_copy(update={name: value})


@pytest.mark.parametrize(
    ("name", "value", "was"),
    [
        ("batch", 4, 2),
        ("seq_len", 64, 48),
        ("pack", True, False),
        ("group_by_length", True, False),
        ("allow_truncation", False, True),
        ("purpose", "throughput", "quality"),
        ("seed", 1, 0),
    ],
)
def test_another_order_of_rows_is_refused_by_name(
    request_of, tokenizer, tmp_path, name, value, was
):
    point = saved(request_of, tokenizer, tmp_path)
    check_course(request_of, tokenizer, point)
    with pytest.raises(InvalidInput) as caught:
        check_course(changed(request_of, name, value), tokenizer, point)
    assert caught.value.field == name
    assert caught.value.value == f"{value}, saved {was}"
    assert "resume: never" in caught.value.remedy
    assert "another out" in caught.value.remedy


def test_all_that_changed_is_in_one_message(request_of, tokenizer, tmp_path):
    point = saved(request_of, tokenizer, tmp_path)
    other = changed(changed(request_of, "batch", 4), "pack", True)
    with pytest.raises(InvalidInput) as caught:
        check_course(other, tokenizer, point)
    assert caught.value.field == "batch, pack"
    assert caught.value.value == "4, saved 2; True, saved False"


def test_another_template_is_refused_by_name(request_of, tokenizer, tmp_path):
    point = saved(request_of, tokenizer, tmp_path)
    other = load_tokenizer("random", 384)
    other.chat_template = TEMPLATES["chatml"]
    with pytest.raises(InvalidInput, match="template = 'chatml, saved "):
        check_course(request_of, other, point)
    other.chat_template = "{{ messages[0].content }}"
    with pytest.raises(InvalidInput, match="template = 'sha256:"):
        check_course(request_of, other, point)


def test_other_rows_are_refused_as_data(request_of, tokenizer, tmp_path):
    point = saved(request_of, tokenizer, tmp_path)
    manifest = json.loads(request_of.split.read_text())
    manifest["train"]["sha256"] = "0" * 64
    split = tmp_path / "split.json"
    split.write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match="data = 'rows 0000000000000000, saved rows"):
        check_course(changed(request_of, "split", split), tokenizer, point)


def test_a_checkpoint_from_before_the_field_is_read(
    request_of, tokenizer, tmp_path, caplog
):
    made = saved(request_of, tokenizer, tmp_path / "a", with_course=False)
    state = json.loads((made.folder / "state.json").read_text())
    assert state.pop("course") is None
    old = content(2)
    old.documents["state.json"] = json.dumps(state)
    point = checkpoint.open_whole(checkpoint.save(tmp_path / "b", old, 1))
    assert point.state.course is None
    check_course(changed(request_of, "batch", 4), tokenizer, point)
    assert "not checked" in caplog.text
    with pytest.raises(InvalidInput, match="seed"):
        check_course(changed(request_of, "seed", 1), tokenizer, point)


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """A fine-tuning of two steps with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("fine")
    path = shortened(folder)
    text = "".join(
        f"{line}\n"
        for line in path.read_text().splitlines()
        if not line.startswith("save_every")
    )
    path.write_text(text + "save_every: 1\n")
    result = invoke(path, folder / "run")
    assert result.exit_code == 0, result.output
    return path, folder / "run"


def invoke(path, out, *more):
    return CliRunner().invoke(app, ["train", str(path), "--out", str(out), *more])


def flip(path, old: bytes, new: bytes) -> None:
    """Change one byte, by one bit."""
    data = path.read_bytes()
    assert data.count(old) >= 1
    assert sum((a ^ b).bit_count() for a, b in zip(old, new, strict=True)) == 1
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version"', b'"versioj"'),  # no plan any more
        (b'"batch": 2', b'"batch": 3'),  # a plan still, of another batch
    ],
)
def test_a_flipped_bit_in_a_plan_skips_its_checkpoint(
    fine_tuned, tmp_path, caplog, old, new
):
    path, run = fine_tuned
    out = tmp_path / "run"
    shutil.copytree(run, out)
    plan = (run / "plan.json").read_bytes()
    flip(out / "checkpoints" / "step-000002" / "plan.json", old, new)
    result = invoke(path, out)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "plan.json has another sha256 than was written" in caplog.text
    assert "resuming after step 1" in caplog.text
    assert (out / "plan.json").read_bytes() == plan
    assert numbers(out) == numbers(run)
    # The step that was lost is whole again.
    checkpoint.open_whole(out / "checkpoints" / "step-000002")


def test_a_fine_tuning_with_another_batch_is_refused_and_harms_nothing(
    fine_tuned, tmp_path
):
    path, run = fine_tuned
    out = tmp_path / "run"
    shutil.copytree(run, out)
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("batch: 2", "batch: 4"))
    result = invoke(other, out)
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith("batch = '4, saved 2': ")
    assert (out / "record.json").read_bytes() == (run / "record.json").read_bytes()
    assert (out / "weights").is_dir()
