"""The doctor sees what is there, and names a remedy for what is not well."""

from __future__ import annotations

import json
import resource
import subprocess

import pytest
from typer.testing import CliRunner

from lazytrain.cli import root as command_line
from lazytrain.doctor import disk, gpu, host, report, software
from lazytrain.doctor.report import Check, Examination

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /scratch tmpfs rw 0 0
/dev/nvme0n1 /scratch/fast xfs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb /with\\040space btrfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/scratch/a", "tmpfs"),
        ("/scratch/fast/a", "xfs"),
        ("/scratch/faster", "tmpfs"),
        ("/home/me", "nfs4"),
        ("/with space/a", "btrfs"),
    ],
)
def test_the_innermost_mount_decides_the_file_system(path, kind):
    assert disk.file_system_of(disk.Path(path), MOUNTS) == kind


def test_the_file_system_is_the_one_that_stat_names(tmp_path):
    command = ["stat", "--file-system", "--format=%T", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    kind = disk.file_system_of(tmp_path)
    # stat cannot tell the members of the ext family apart
    assert told.stdout.startswith("ext") == kind.startswith("ext")


@pytest.mark.parametrize(
    ("kind", "verdict"), [("ext4", "ok"), ("tmpfs", "fail"), ("nfs4", "warn")]
)
def test_memory_is_no_disk(tmp_path, kind, verdict):
    check = disk.file_system(tmp_path, kind)
    assert check.verdict == verdict
    assert bool(check.remedy) == (verdict != "ok")


def test_a_disk_is_measured_and_nothing_is_left(tmp_path):
    found = {check.name: check for check in disk.checks(tmp_path / "scratch")}
    assert set(found) == {"scratch", "disk space", "O_DIRECT", "disk rate", "GDS"}
    assert "GB/s" in found["disk rate"].value
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_scratch_folder_that_cannot_be_made_fails_with_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    (check,) = disk.checks(tmp_path / "file")
    assert (check.verdict, "--scratch" in check.remedy) == ("fail", True)


def test_limits_and_nodes(tmp_path):
    assert host.pinned_limit(resource.RLIM_INFINITY).verdict == "ok"
    assert host.pinned_limit(8 << 20).verdict == "warn"
    assert host.pinned_limit(1 << 40).verdict == "ok"
    assert host.numa(tmp_path).value == "1 node"
    for number in (0, 1):
        (tmp_path / f"node{number}").mkdir()
    assert host.numa(tmp_path).verdict == "warn"


@pytest.mark.parametrize(
    ("link", "verdict"),
    [
        ((5, 16, 5, 16), "ok"),
        ((1, 16, 5, 16), "ok"),  # an idle link drops its generation
        ((5, 8, 5, 16), "warn"),
        ((0, 0, 0, 0), "warn"),
    ],
)
def test_a_narrow_slot_is_told(link, verdict):
    assert gpu._width(gpu.LinkWidth(*link)).verdict == verdict


def test_without_a_gpu_the_stand_ins_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (check,) = gpu.checks()
    assert (check.value, check.verdict) == ("none", "warn")


def test_a_missing_compiler_and_packages_are_told(monkeypatch):
    monkeypatch.setattr(software.shutil, "which", lambda _: None)
    assert software._compiler().verdict == "warn"
    assert software._version("no-such-package", None).verdict == "fail"
    assert "lazytrain[gds]" in software._version("no-such-package", "gds").remedy


def test_the_worst_verdict_decides():
    def named(*verdicts):
        checks = [Check(name="x", value="", verdict=verdict) for verdict in verdicts]
        return Examination(checks=checks).worst

    assert named() == "ok"
    assert named("ok", "warn") == "warn"
    assert named("warn", "fail", "ok") == "fail"


def test_text_shows_each_remedy_below_its_check():
    checks = [
        Check(name="disk", value="full", verdict="fail", remedy="empty it"),
        Check(name="gpu", value="there", verdict="ok"),
    ]
    text = report.as_text(Examination(checks=checks))
    assert text.splitlines() == [
        "fail  disk  full",
        "            -> empty it",
        ("ok    gpu   there"),
    ]


def test_the_command_prints_json_that_reads_back(tmp_path):
    arguments = ["doctor", "--json", "--no-kernels", "--scratch", str(tmp_path)]
    ended = CliRunner().invoke(command_line, arguments)
    found = Examination.model_validate(json.loads(ended.stdout))
    assert ended.exit_code == (1 if found.worst == "fail" else 0)
    names = [check.name for check in found.checks]
    for name in ("gpu", "memory", "numa", "DRAM rate", "O_DIRECT", "GDS", "compiler"):
        assert name in names
    assert all(check.remedy for check in found.checks if check.verdict != "ok")
