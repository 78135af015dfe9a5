"""Memory limits, rates and provenance are measured and say what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
)
from lazytrain.errors import InvalidInput
from lazytrain.profile import bandwidth, hardware, memory
from lazytrain.provenance import collect
from lazytrain.units import MIB

CPU = torch.device("cpu")


def test_the_tightest_cgroup_counts(tmp_path, monkeypatch):
    inner = tmp_path / "slice" / "job"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1000\n")
    (inner.parent / "memory.current").write_text("400\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_own_cgroup", lambda: inner)
    assert memory.cgroup_available_bytes() == 600
    assert memory.host_available_bytes() == 600


def test_a_cgroup_that_is_over_its_limit_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("1200\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_own_cgroup", lambda: tmp_path)
    assert memory.cgroup_available_bytes() == 0


def test_no_limit_leaves_the_machines_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_own_cgroup", lambda: tmp_path)
    assert memory.cgroup_available_bytes() is None
    assert memory.host_available_bytes() > 0


def test_the_peak_grows_with_what_is_touched():
    code = (
        "from lazytrain.profile.memory import host_peak_bytes as p; a = p();"
        "b = bytearray(b'x' * 100_000_000); print(p() - a)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 90_000_000


def test_link_rates_are_positive():
    link = bandwidth.measure_link(CPU, MIB)
    assert min(link.h2d, link.d2h, link.h2d_together, link.d2h_together) > 0


def test_disk_rates_leave_no_file(tmp_path):
    rates = bandwidth.measure_disk(tmp_path, 8 * MIB)
    assert rates.read > 0
    assert rates.write > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_o_direct_is_measured_and_said_so(tmp_path, monkeypatch):
    real = os.open

    def refuse_direct(path, flags, mode=0o777):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, mode)

    monkeypatch.setattr(bandwidth.os, "open", refuse_direct)
    assert not bandwidth.measure_disk(tmp_path, 8 * MIB).direct


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bandwidth.os, "pwrite", full)
    with pytest.raises(InvalidInput, match="No space left"):
        bandwidth.measure_disk(tmp_path, 8 * MIB)
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_that_can_be_no_folder_is_named_with_a_remedy(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    steps = {"num_steps": 1, "warmup_steps": 0, "learning_rate": 1e-3}
    for given in (file, file / "below", Path("/proc/nope")):
        config = PipelineConfig.model_validate(
            {
                "scratch": str(given),
                "accelerators": {"cpu": {"throughput": steps, "quality": steps}},
            }
        )
        for measure in (
            lambda folder=given: bandwidth.measure_disk(folder, 8 * MIB),
            lambda config=config: hardware.measure_hardware("cpu", config),
        ):
            with pytest.raises(InvalidInput, match="cannot be made a folder") as caught:
                measure()
            assert caught.value.field == "scratch"
            assert caught.value.value == str(given)
            assert "give a folder" in caught.value.remedy
    assert file.read_text() == "mine"


def test_optimizer_rates_by_state_format():
    settings = OptimizerSettings(eight_bit_fraction=0.5, threads=1)
    rates = hardware.measure_optimizer(settings, torch.float32, 1 << 14)
    assert set(rates) == {"fp32", "8bit", "hybrid"}
    assert min(rates["fp32"], rates["8bit"]) <= rates["hybrid"]
    assert rates["hybrid"] <= max(rates["fp32"], rates["8bit"])


def config(**budgets):
    purpose = Purpose(num_steps=2, warmup_steps=1, learning_rate=0.1)
    settings = AcceleratorSettings(
        budgets=Budgets(**budgets), throughput=purpose, quality=purpose
    )
    return PipelineConfig(accelerators={"cpu": settings})


def test_the_cpu_sheets_cap_is_its_budget():
    assert hardware.gpu_cap_bytes(config(gpu_cap="64MiB"), "cpu", CPU) == 64 * MIB
    assert hardware.gpu_cap_bytes(config(), "cpu", CPU) == 0


def test_an_accelerator_without_settings_or_device_is_an_error(monkeypatch):
    with pytest.raises(InvalidInput, match="known: cpu"):
        hardware.settings_for(config(), "gpu80")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="no CUDA device"):
        hardware.device_for("gpu80")
    assert hardware.device_for("cpu") == CPU


def test_a_whole_machine_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "_OPTIMIZER_PARAMETERS", {"cpu": 1 << 14})
    monkeypatch.setattr(hardware, "_COPY_BYTES", {"cpu": MIB})
    settings = config(gpu_cap="64MiB").model_copy(update={"scratch": str(tmp_path)})
    found = hardware.measure_hardware("cpu", settings)
    assert found.gpu_memory_bytes == 0
    assert found.gpu_cap_bytes == 64 * MIB
    assert "host copies" in found.device
    assert found.matmul_flops_per_s > 0
    assert found.host_memory_bytes > 0


def test_provenance_names_code_machine_and_inputs(monkeypatch):
    found = collect("cpu", {"plan": "abc"})
    assert found.made_from == {"plan": "abc"}
    assert found.device == found.cpu
    assert found.versions["torch"].startswith("2.")
    assert len(found.hostname_sha256) == 64


def test_provenance_outside_a_checkout():
    code = (
        "from lazytrain import provenance as p; p._git = lambda *a: None;"
        "print(p.collect().commit)"
    )
    for given, expected in ((None, "unknown"), ("abc123-dirty", "abc123")):
        environment = {k: v for k, v in os.environ.items() if k != "LAZYTRAIN_COMMIT"}
        if given:
            environment["LAZYTRAIN_COMMIT"] = given
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected
