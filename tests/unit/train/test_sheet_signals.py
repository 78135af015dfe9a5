"""However a sheet is told to end, nothing that it started lives on or starts after."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_all_stages(tmp_path, name):
    number = getattr(signal, name)
    command = [sys.executable, "-m", "lazytrain", "sheet", "--scale", "3B"]
    command += ["--config", str(ROOT / "config" / "config.yaml")]
    command += ["--accelerator", "cpu", "--results", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (started := children(process)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(120) == 128 + number
    assert started
    _, alive = psutil.wait_procs(started, timeout=120)
    assert not alive
    assert not list(tmp_path.glob("runs/**/record.json"))
