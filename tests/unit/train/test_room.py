"""A fine-tuning asks for its room on the disk before it begins."""

from __future__ import annotations

import logging

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.profile.memory import disk_free_bytes
from lazytrain.train.finetune_settings import FineTune
from lazytrain.train.held_room import weights_bytes
from lazytrain.train.room import check_room, checkpoint_bytes

NO_DISK_HOLDS = 10**15


def settings(out, **changes) -> FineTune:
    values = {
        "model": "3B-mini",
        "weights": "random",
        "out": out,
        "batch": 2,
        "seq_len": 32,
        "num_steps": 4,
        "learning_rate": 1e-3,
        "executor": {"dtype": "bfloat16"},
    }
    return FineTune.model_validate(values | changes)


def test_a_run_whose_weights_have_no_room_is_refused(tmp_path):
    for every in (0, 10):
        with pytest.raises(InvalidInput, match=r"^out = .*take 1862645.*: free some"):
            check_room(settings(tmp_path, save_every=every), NO_DISK_HOLDS)


@pytest.mark.parametrize(("every", "is_told"), [(10, True), (0, False)])
def test_checkpoints_without_room_are_told_of(tmp_path, caplog, every, is_told):
    half = disk_free_bytes(tmp_path) // 4  # parameters whose weights take half of it
    with caplog.at_level(logging.WARNING):
        check_room(settings(tmp_path, save_every=every), half)
    assert ("3 checkpoints take up to" in caplog.text) is is_told


def test_what_has_room_is_not_spoken_of(tmp_path, caplog):
    check_room(settings(tmp_path), 1000)
    assert not caplog.records


def test_room_is_counted_from_what_is_written(tmp_path):
    given = settings(tmp_path)
    assert weights_bytes(given.executor.dtype, 1000) == 2000
    wide = settings(tmp_path, executor={"dtype": "float32"})
    assert weights_bytes(wide.executor.dtype, 1000) == 4000
    assert checkpoint_bytes(given, 1000) == 12_000
    eight = {"type": "cpu_adamw_8bit", "master": "bf16"}
    assert 4000 < checkpoint_bytes(settings(tmp_path, optimizer=eight), 1000) < 4100


def test_checkpoints_that_are_there_already_take_no_more_room(tmp_path, caplog):
    for step in (10, 20):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        # One more of 12 bytes a parameter beside weights of 2: five sixths of it.
        check_room(settings(tmp_path), disk_free_bytes(tmp_path) * 5 // 6 // 14)
    assert not caplog.records


def test_a_run_is_safe_from_a_reboot_unless_it_is_told_not_to_be(tmp_path):
    assert settings(tmp_path).save_every == 100
