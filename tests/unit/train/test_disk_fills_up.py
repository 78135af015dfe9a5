"""A disk that fills up while a run trains costs no weights."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess

import pytest
import torch
from safetensors.torch import load
from test_checkpoint_kill import STEPS, make_request
from test_model_files import record
from test_room import settings

from lazytrain.errors import InvalidInput, is_disk_full
from lazytrain.profile.memory import disk_free_bytes
from lazytrain.records import StepRecord, read_lines
from lazytrain.train import held_room, resume
from lazytrain.train.held_room import BESIDE_WEIGHTS_BYTES, held
from lazytrain.train.room import check_room
from lazytrain.train.run import run_row
from lazytrain.train.sinks import JsonLines, Sinks
from lazytrain.units import MIB


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 32 MiB; the test is skipped where this user may not mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder):
    """Take all room that is left, as another program would."""
    with (folder / "other").open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(MIB)) == MIB:
                pass
        with contextlib.suppress(OSError):
            while file.write(b"0"):
                pass


def weights_of(out):
    """Read a run's weights, with no file mapped that would hold its disk."""
    return load((out / "weights" / "model.safetensors").read_bytes())


def test_room_is_held_given_back_and_refused(small_disk):
    with held(small_disk, 8 * MIB) as give_back:
        assert list(small_disk.iterdir()) == []  # nothing that a kill could leave
        assert disk_free_bytes(small_disk) == 24 * MIB - BESIDE_WEIGHTS_BYTES
        fill(small_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            (small_disk / "weights").write_bytes(bytes(8 * MIB))
        assert is_disk_full(caught.value)
        give_back()
        (small_disk / "weights").write_bytes(bytes(8 * MIB))
    with (
        pytest.raises(InvalidInput, match=r"^out = .*weights, 2[45].*: free some"),
        held(small_disk, 8 * MIB),
    ):
        pytest.fail("there is no room")
    (small_disk / "weights").unlink()
    assert disk_free_bytes(small_disk) == 24 * MIB  # all but the other program's


def test_as_much_is_asked_for_at_first_as_is_held(small_disk):
    """A run that passes is not refused once it has measured and planned."""
    given = settings(small_disk, save_every=0)  # two bytes per parameter
    most = (disk_free_bytes(small_disk) - BESIDE_WEIGHTS_BYTES) // 2
    check_room(given, most)
    with held(small_disk, 2 * most):
        pass
    with pytest.raises(InvalidInput, match=r"^out = .*with what lies beside them"):
        check_room(given, most + 1)


def test_nothing_is_held_for_a_run_without_weights(tmp_path):
    with held(tmp_path, 0):
        assert not list(tmp_path.iterdir())


def test_a_file_system_that_holds_no_room_is_used_as_it_is(tmp_path, monkeypatch):
    def unknown(*_arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(held_room, "set_aside", unknown)
    with held(tmp_path, MIB):
        pass
    assert not list(tmp_path.iterdir())


def test_room_that_cannot_be_set_aside_is_an_error_and_is_not_written():
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match="seek") as caught:
            held_room.set_aside(writer, MIB)
        assert caught.value.errno == errno.ESPIPE
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)


def test_lines_wait_for_room(small_disk, caplog):
    path = small_disk / "steps.jsonl"
    with Sinks(JsonLines(path)) as sinks:
        sinks.put(record(1))
        fill(small_disk)
        for number in range(2, 60):
            sinks.put(record(number))
        assert caplog.text.count("steps wait for some") == 1
        (small_disk / "other").unlink()
    assert [step.step for step in read_lines(StepRecord, path)] == [*range(1, 60)]


def test_lines_without_room_at_the_end_hide_nothing(small_disk, caplog):
    path = small_disk / "steps.jsonl"
    with Sinks(JsonLines(path)) as sinks:
        fill(small_disk)
        for number in range(1, 60):
            sinks.put(record(number))
    assert not path.exists()
    assert "the last steps found no room" in caplog.text


def test_a_disk_that_fills_up_costs_checkpoints_and_no_weights(
    tmp_path, small_disk, monkeypatch, caplog
):
    """All that such a run had was lost at its first line without room."""
    request = make_request(tmp_path)
    run_row(request.model_copy(update={"save_every": 0, "resume": "never"}))
    expected = weights_of(request.out)
    put = resume.Saver.put

    def put_and_fill(saver, step):
        put(saver, step)
        fill(small_disk)

    monkeypatch.setattr(resume.Saver, "put", put_and_fill)
    with caplog.at_level(logging.ERROR):
        found = run_row(request.model_copy(update={"out": small_disk / "out"}))
    assert found.status == "ok"
    for what in ("no checkpoint at step 1: ", f"no checkpoint at step {STEPS}: "):
        assert what in caplog.text
    left = weights_of(small_disk / "out")
    assert all(torch.equal(left[name], expected[name]) for name in expected)
    steps = read_lines(StepRecord, small_disk / "out" / "steps.jsonl")
    assert [step.step for step in steps] == [*range(1, STEPS + 1)]
    assert not list((small_disk / "out" / "checkpoints").iterdir())
