"""A run's folder is one run's at a time, and never shows old results as new ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_checkpoint_kill import make_request, numbers
from test_finetune import shortened
from typer.testing import CliRunner

from lazytrain.commands.train import app
from lazytrain.config import Budgets
from lazytrain.errors import InvalidInput
from lazytrain.records import RunRecord, read
from lazytrain.train import run as run_module
from lazytrain.train.export import find_origin
from lazytrain.train.lock import OUT_LOCK, OutBusy, hold_out
from lazytrain.train.run import run_row

HOLDER = (
    "import sys, pathlib; from lazytrain.train.lock import hold_out\n"
    "with hold_out(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def holder(tmp_path):
    """A process that holds ``tmp_path / out``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_a_second_run_is_refused_and_told_the_first_ones_pid(tmp_path, holder):
    request = make_request(tmp_path, save_every=0, resume="never")
    with pytest.raises(OutBusy, match=f"process {holder.pid} is writing it"):
        run_row(request)
    given = ["train", str(shortened(tmp_path)), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, OutBusy)
    assert str(holder.pid) in str(result.exception)
    # It wrote nothing beside the first one's lock.
    assert [path.name for path in (tmp_path / "out").iterdir()] == [OUT_LOCK]


def test_a_killed_run_holds_nothing(tmp_path, holder):
    holder.kill()
    holder.wait()
    lock = tmp_path / "out" / OUT_LOCK
    assert lock.read_text().strip() == str(holder.pid)
    with hold_out(tmp_path / "out"):
        assert lock.read_text().strip() == str(os.getpid())
    assert not lock.exists()


def test_a_lock_that_went_with_its_holder_is_made_anew(tmp_path, monkeypatch):
    """The holder may end between our opening its file and our locking it."""
    lock = tmp_path / OUT_LOCK
    opened = []
    real = os.open

    def late(path, *arguments):
        handle = real(path, *arguments)
        if not opened:
            lock.unlink()
        opened.append(handle)
        return handle

    monkeypatch.setattr(os, "open", late)
    with hold_out(tmp_path):
        assert len(opened) == 2
        assert lock.read_text().strip() == str(os.getpid())
        with pytest.raises(OutBusy), hold_out(tmp_path):
            pass
        assert lock.exists()


def test_a_file_in_the_folders_place_is_named(tmp_path):
    (tmp_path / "out").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(InvalidInput, match="is no folder"), hold_out(out):
            pass


@pytest.fixture
def finished(tmp_path):
    """A complete run without checkpoints."""
    request = make_request(tmp_path, save_every=0, resume="never")
    assert run_row(request).status == "ok"
    return request


def fail(*_arguments):
    raise RuntimeError("shapes do not match")


def test_a_failed_run_does_not_show_the_earlier_ones_results(finished, monkeypatch):
    out = finished.out
    before = (out / "record.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "build_engine", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes"):
                run_row(finished)
            assert not (out / "record.json").exists()
            with pytest.raises(InvalidInput, match="holds no weights"):
                find_origin(out)
    # Nothing is lost, until a run has results of its own.
    assert (out / "record.json.previous").read_bytes() == before
    assert (out / "weights.previous" / "model.safetensors").is_file()
    assert run_row(finished).status == "ok"
    assert find_origin(out).path == out / "weights"
    assert not list(out.glob("*.previous"))


def test_a_run_at_a_memory_limit_leaves_no_old_weights(finished):
    cpu = finished.config.accelerators["cpu"]
    small = cpu.model_copy(update={"budgets": Budgets(host_capacity="1MiB")})
    config = finished.config.model_copy(update={"accelerators": {"cpu": small}})
    record = run_row(finished.model_copy(update={"config": config}))
    assert record.status == "host_oom"
    assert read(RunRecord, finished.out / "record.json").status == "host_oom"
    with pytest.raises(InvalidInput, match="holds no weights"):
        find_origin(finished.out)


def test_checkpoints_of_an_earlier_run_are_not_taken_for_a_new_ones(
    tmp_path, monkeypatch
):
    request = make_request(tmp_path)
    run_row(request)
    anew = request.model_copy(update={"save_every": 0, "resume": "never"})
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "build_engine", fail)
        with pytest.raises(RuntimeError, match="shapes"):
            run_row(anew)
    with pytest.raises(InvalidInput, match="holds no weights"):
        find_origin(request.out)
    assert (request.out / "checkpoints.previous" / "step-000004").is_dir()


def test_a_complete_run_that_is_resumed_keeps_its_results(tmp_path, monkeypatch):
    request = make_request(tmp_path)
    run_row(request)
    expected = numbers(request.out)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "build_engine", fail)
        with pytest.raises(RuntimeError, match="shapes"):
            run_row(request)
    assert read(RunRecord, request.out / "record.json").status == "ok"
    assert find_origin(request.out).path == request.out / "weights"
    run_row(request)
    assert numbers(request.out) == expected
    assert not list(request.out.glob("*.previous"))


def test_a_fine_tuning_at_a_memory_limit_fails_as_a_command(tmp_path, monkeypatch):
    def full(*_arguments):
        raise MemoryError("Unable to allocate 5 bytes")

    monkeypatch.setattr(run_module, "build_engine", full)
    given = ["train", str(shortened(tmp_path)), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 3
    record = read(RunRecord, tmp_path / "out" / "record.json")
    assert record.status == "host_oom"
    assert f"lazytrain: host_oom: {record.reason}" in result.stderr
    assert result.stdout == f"host_oom: {tmp_path / 'out' / 'record.json'}\n"
