"""Whatever happens to a checkpoint's bytes, it is never taken for a whole one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.train import checkpoint
from lazytrain.train.checkpoint import Content, TrainingState
from lazytrain.train.randomness import random_state


def save(root: Path, step: int) -> Path:
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
    content = Content(
        state=state,
        weights={f"w{n}": torch.full((30,), float(step + n)) for n in range(6)},
        optimizer={"a/exp_avg": torch.full((9,), float(step))},
        steps=(),
        documents={"plan.json": '{"plan": 1}\n'},
        save_model=lambda folder: folder.mkdir(),
    )
    return checkpoint.save(root, content, keep_last=5, shard_bytes=300)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    for step in (3, 7):
        save(root, step)
    return root


def damage(path: Path, kind: str, where: float, bit: int) -> bool:
    """Change a file; False if the bytes are as before."""
    before = path.read_bytes()
    place = min(int(where * len(before)), len(before) - 1)
    if kind == "gone":
        path.unlink()
        return True
    after = bytearray(before)
    if kind == "flip":
        after[place] ^= 1 << bit
    elif kind == "cut":
        del after[place:]
    elif kind == "zeros":
        after[place:] = bytes(len(after) - place)
    else:
        after[place:place] = b"x"
    path.write_bytes(after)
    return bytes(after) != before


@settings(max_examples=80)
@given(
    file=st.integers(0, 100),
    kind=st.sampled_from(["flip", "cut", "zeros", "more", "gone"]),
    where=st.floats(0, 1),
    bit=st.integers(0, 7),
)
def test_damage_is_seen_and_the_older_one_taken(
    template, tmp_path_factory, file, kind, where, bit
):
    root = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(template, root)
    files = sorted(p for p in (root / "step-000007").rglob("*") if p.is_file())
    files = [path for path in files if path.stat().st_size]
    before = (root / "step-000007" / "complete").read_text().strip()
    changed = damage(files[file % len(files)], kind, where, bit)
    complete = root / "step-000007" / "complete"
    if complete.is_file() and files[file % len(files)] == complete:
        # White space around the digest says nothing else.
        changed = complete.read_bytes().strip() != before.encode()
    found, skipped = checkpoint.newest(root)
    assert found is not None
    if changed:
        assert found.state.step == 3
        assert list(skipped) == [root / "step-000007"]
    taken = found.state.step
    assert torch.equal(found.weights["w5"], torch.full((30,), taken + 5.0))
    assert torch.equal(found.optimizer["a/exp_avg"], torch.full((9,), float(taken)))
    shutil.rmtree(root.parent)


@settings(max_examples=30)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["save", "break", "partial"]), st.integers(1, 9)),
        max_size=8,
    ),
    keep=st.integers(1, 3),
)
def test_a_whole_one_is_left_whatever_the_order(tmp_path_factory, actions, keep):
    """Saves, broken folders and leftovers in any order: the last save is found."""
    root = tmp_path_factory.mktemp("any") / "run"
    last: int | None = None
    for action, step in actions:
        folder = root / checkpoint.folder_name(step)
        if action == "save":
            save(root, step)
            checkpoint.prune(root, keep, step)
            last = step
        elif action == "break" and step != last:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "complete").write_text("0" * 64)
        elif action == "partial":
            partial = folder.with_name(folder.name + ".partial")
            partial.mkdir(parents=True, exist_ok=True)
    found, _ = checkpoint.newest(root)
    assert (found.state.step if found else None) == last
    shutil.rmtree(root.parent)
