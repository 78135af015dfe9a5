"""``clean`` removes what is certainly dead, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from lazytrain.cli import root as command_line
from lazytrain.errors import InvalidInput
from lazytrain.tiers import run_folder
from lazytrain.tiers.run_folder import DATA_FILE, LOCK_FILE, NEW_PREFIX, PREFIX
from lazytrain.tiers.sweep import parse_age, sweep

DAY_S = 86_400.0


def dead_owner():
    """An owner whose process has ended."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ticks = run_folder.start_ticks(child.pid)
    child.kill()
    child.wait()
    us = run_folder.this_process()
    return dataclasses.replace(us, pid=child.pid, start_ticks=ticks)


@pytest.fixture(scope="module")
def dead():
    return dead_owner()


def make(root, owner, name="one", prefix=PREFIX, age_s=2 * DAY_S):
    """Lay a run's directory as a killed process leaves it."""
    folder = root / f"{prefix}{name}"
    folder.mkdir(mode=0o700)
    (folder / LOCK_FILE).touch()
    (folder / DATA_FILE).write_bytes(b"x" * 10_000)
    if owner is not None:
        (folder / "owner.json").write_text(json.dumps(dataclasses.asdict(owner)))
    then = time.time() - age_s
    for path in [*folder.iterdir(), folder]:
        os.utime(path, (then, then))
    return folder


def actions(root, **options):
    return [one.action for one in sweep(root, DAY_S, **options)]


def reason(root):
    (one,) = sweep(root, DAY_S)
    assert one.action == "kept"
    return one.reason


def test_a_dead_runs_directory_goes_and_its_size_is_told(tmp_path, dead):
    folder = make(tmp_path, dead)
    (one,) = sweep(tmp_path, DAY_S)
    assert one.action == "removed"
    assert one.size_bytes >= 10_000
    assert not folder.exists()


def test_a_dry_run_touches_nothing(tmp_path, dead):
    folder = make(tmp_path, dead)
    (folder / LOCK_FILE).unlink()
    before = sorted(path.name for path in folder.iterdir())
    os.utime(folder, (0, 0))
    assert actions(tmp_path, dry_run=True) == ["would remove"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_young_directory_stays(tmp_path, dead):
    make(tmp_path, dead, age_s=DAY_S / 2)
    assert "was used" in reason(tmp_path)


def test_a_directory_whose_process_runs_stays_even_with_a_free_lock(tmp_path):
    make(tmp_path, run_folder.this_process())
    assert f"process {os.getpid()} still runs" in reason(tmp_path)


def test_a_reused_pid_is_another_process(tmp_path):
    us = run_folder.this_process()
    make(tmp_path, dataclasses.replace(us, start_ticks=us.start_ticks - 1))
    assert actions(tmp_path) == ["removed"]


def test_a_held_lock_keeps_the_directory_whatever_the_owner_file_says(tmp_path, dead):
    folder = make(tmp_path, dead)
    descriptor = os.open(folder, os.O_RDONLY)
    lock = run_folder.take_lock(descriptor)
    assert lock is not None
    assert "lock is held" in reason(tmp_path)
    os.close(lock)
    os.close(descriptor)
    assert actions(tmp_path) == ["removed"]


def test_an_earlier_boot_of_this_host_is_dead_another_host_is_not_ours(tmp_path, dead):
    old = dataclasses.replace(dead, boot_id="earlier")
    make(tmp_path, dataclasses.replace(old, host="elsewhere"))
    assert "host elsewhere" in reason(tmp_path)
    make(tmp_path, old, "two")
    assert actions(tmp_path) == ["kept", "removed"]


def test_no_readable_owner_no_removal(tmp_path):
    folder = make(tmp_path, None)
    assert "owner file" in reason(tmp_path)
    for text in ("", "{", "[]", '{"pid": 1}'):
        (folder / "owner.json").write_text(text)
        os.utime(folder / "owner.json", (0, 0))
        os.utime(folder, (0, 0))
        assert "owner file" in reason(tmp_path)


def test_a_directory_killed_while_being_made_goes_when_it_is_old(tmp_path):
    make(tmp_path, None, prefix=NEW_PREFIX)
    make(tmp_path, None, "young", prefix=NEW_PREFIX, age_s=5)
    found = sweep(tmp_path, 0.0)
    assert sorted(one.action for one in found) == ["kept", "removed"]
    assert [path.name for path in tmp_path.iterdir()] == [f"{NEW_PREFIX}young"]


def test_links_are_never_followed(tmp_path, dead):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    target = make(outside, dead)
    (root / f"{PREFIX}link").symlink_to(target)
    assert "link" in reason(root)
    assert (target / DATA_FILE).exists()


@pytest.mark.parametrize("name", [DATA_FILE, LOCK_FILE, "owner.json"])
def test_a_link_inside_takes_nothing_outside_with_it(tmp_path, dead, name):
    root = tmp_path / "root"
    root.mkdir()
    precious = tmp_path / "precious"
    precious.write_text(json.dumps(dataclasses.asdict(dead)))
    folder = make(root, dead)
    (folder / name).unlink()
    (folder / name).symlink_to(precious)
    os.utime(folder / name, (0, 0), follow_symlinks=False)
    os.utime(folder, (0, 0))
    sweep(root, DAY_S)
    assert precious.read_text()


def test_foreign_files_and_folders_keep_the_directory(tmp_path, dead):
    folder = make(tmp_path, dead)
    (folder / "thesis.tex").touch()
    os.utime(folder, (0, 0))
    assert "thesis.tex" in reason(tmp_path)
    (folder / "thesis.tex").unlink()
    (folder / "data").mkdir()
    assert "data" in reason(tmp_path)


def test_other_names_are_not_even_looked_at(tmp_path, dead):
    make(tmp_path, dead, prefix="results-")
    (tmp_path / f"{PREFIX}file").touch()
    (one,) = sweep(tmp_path, 0.0)
    assert one.reason == "is a link or a file"
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_below_a_subfolder_or_beside_the_root_is_touched(tmp_path, dead):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    kept = [make(tmp_path, dead), make(root / "sub", dead)]
    assert actions(root) == []
    assert all(folder.exists() for folder in kept)


def test_a_missing_root_is_an_error(tmp_path):
    with pytest.raises(InvalidInput, match="root"):
        sweep(tmp_path / "none", 0.0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", DAY_S), ("1.5d", 129_600)]
)
def test_ages(text, seconds):
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["24", "h", "-1h", "1w", ""])
def test_an_age_without_number_or_unit_is_refused(text):
    with pytest.raises(InvalidInput, match="older-than"):
        parse_age(text)


def test_the_command_says_what_it_did(tmp_path, dead):
    make(tmp_path, dead)
    arguments = ["clean", "--root", str(tmp_path), "--older-than", "24h"]
    said = CliRunner().invoke(command_line, [*arguments, "--dry-run"])
    assert said.output.startswith("would remove\tlazytrain-run-one\t")
    done = CliRunner().invoke(command_line, arguments)
    assert done.output.startswith("removed\tlazytrain-run-one\t")
    assert list(tmp_path.iterdir()) == []


def test_a_live_runs_directory_survives_a_sweep_of_everything(tmp_path):
    from lazytrain.tiers.nvme import NvmeTier

    with NvmeTier(tmp_path, 4096) as tier:
        (one,) = sweep(tmp_path, 0.0)
        assert one.action == "kept"
        assert tier.path.exists()
