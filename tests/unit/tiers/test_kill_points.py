"""SIGKILL at any file call: the restart gives the undisturbed losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_points.py")


def _run(root, num_points):
    command = [sys.executable, str(SCRIPT), str(root), str(num_points)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("num_points", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_run_restarts_to_the_same_losses(tmp_path, num_points):
    found = _run(tmp_path, num_points)
    assert found["killed"] == num_points
    assert found["same"] == num_points
    assert found["swept"] == num_points
    assert found["left"] == []
    losses = found["losses"]
    assert losses[0] > losses[1] > losses[2] > 0
