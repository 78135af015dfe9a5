"""The kvikio backends, in a process whose CUDA driver is a stub."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lazytrain.tiers import gds_probe
from lazytrain.tiers.gds_probe import probe_gds

STUB = Path(__file__).with_name("libcuda_stub.c")
PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from lazytrain.errors import InvalidInput
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import StorageFault

root, found = Path(sys.argv[1]), {}
with NvmeTier(root, 1 << 20, backend="compat", chunk_bytes=8192) as tier:
    found["record"] = tier.describe()
    same = []
    for size in (1, 4095, 4096, 8193, 50_001):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        out = torch.empty_like(data)
        tier.put("boundary.0", data)
        tier.fetch("boundary.0", out).wait()
        same.append(torch.equal(data, out))
    found["same"] = same
    tier.put("boundary.1", data).wait()
    with tier.path.open("r+b") as file:
        file.seek(70_000)
        file.write(bytes(20_000))
    try:
        tier.fetch("boundary.1", out).wait()
    except StorageFault as fault:
        found["changed"] = str(fault)
    os.truncate(tier.path, 4096)
    try:
        tier.fetch("boundary.0", out).wait()
    except StorageFault as fault:
        found["truncated"] = str(fault)
try:
    NvmeTier(root, 1 << 20, backend="gds")
except InvalidInput as error:
    found["gds"] = str(error)
found["left"] = os.listdir(root)
print(json.dumps(found))
"""


def _library_path(folder):
    """Return LD_LIBRARY_PATH with the stub first and cuFile's own folder behind."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    cufile = [
        str(lib.parent) for p in places for lib in Path(p).rglob("libcufile.so.0")
    ]
    return os.pathsep.join([str(folder), *cufile])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the stub needs gcc")
@pytest.mark.skipif(
    importlib.util.find_spec("kvikio") is None, reason="kvikio is not installed"
)
def test_compat_moves_and_proves_bytes_and_gds_says_what_is_missing(tmp_path):
    library = tmp_path / "lib" / "libcuda.so.1"
    library.parent.mkdir()
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, STUB], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": _library_path(library.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "scratch")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["record"]["backend"] == "compat"
    assert found["same"] == [True] * 5
    assert "boundary.1" in found["changed"]
    assert "boundary.0" in found["truncated"]
    assert "nvidia-fs" in found["gds"]
    assert found["left"] == []


def _seen(monkeypatch, tmp_path, *, package, driver, loads=None, kernel=False):
    spec = object() if package else None
    monkeypatch.setattr(gds_probe.importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(gds_probe, "_loads", lambda _: driver)
    monkeypatch.setattr(gds_probe, "_import_failure", lambda: loads)
    stats = tmp_path / "stats"
    if kernel:
        stats.touch()
    return probe_gds(stats)


def test_the_probe_names_the_first_thing_that_is_missing(monkeypatch, tmp_path):
    state = _seen(monkeypatch, tmp_path, package=False, driver=False)
    assert (state.can_import, state.is_direct) == (False, False)
    assert "lazytrain[gds]" in state.remedy
    state = _seen(monkeypatch, tmp_path, package=True, driver=False)
    assert (state.can_import, "libcuda" in state.reason) == (False, True)
    state = _seen(monkeypatch, tmp_path, package=True, driver=True, loads="no cufile")
    assert (state.can_import, "no cufile" in state.reason) == (False, True)
    state = _seen(monkeypatch, tmp_path, package=True, driver=True)
    assert (state.can_import, state.is_direct) == (True, False)
    state = _seen(monkeypatch, tmp_path, package=True, driver=True, kernel=True)
    assert (state.can_import, state.is_direct) == (True, True)
