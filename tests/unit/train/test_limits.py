"""Memory limits, device locks, availability and the search for a batch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lazytrain.config import Budgets, PipelineConfig
from lazytrain.errors import InvalidInput, OutOfMemory
from lazytrain.train import availability, capacity
from lazytrain.train.lock import DeviceBusy, hold
from lazytrain.train.max_batch import Bracket, largest_feasible


def test_the_host_allocators_error_is_recognised_with_its_size():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    hit = capacity.recognise(caught.value)
    assert hit is not None
    assert hit.status == "host_oom"
    assert hit.requested_bytes == 1 << 60


def test_the_device_allocators_error_is_recognised_with_its_size():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")
    hit = capacity.recognise(error)
    assert hit is not None
    assert (hit.status, hit.requested_bytes) == ("oom", 3 << 29)


@pytest.mark.parametrize(
    ("tier", "status"), [("gpu", "oom"), ("host", "host_oom"), ("pinned", "host_oom")]
)
def test_our_own_errors_say_their_tier(tier, status):
    hit = capacity.recognise(OutOfMemory(tier, 7, "x"))
    assert hit is not None
    assert (hit.status, hit.requested_bytes) == (status, 7)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), ValueError("x"), KeyError("x")]
)
def test_other_errors_are_no_memory_limit(error):
    assert capacity.recognise(error) is None


def test_the_preflight_refuses_with_both_numbers():
    with pytest.raises(OutOfMemory, match=r"2.00 GiB.*1.00 GiB") as caught:
        capacity.preflight(2 << 30, Budgets(host_capacity="1GiB"), "a row")
    assert caught.value.requested_bytes == 2 << 30
    capacity.preflight(1 << 20, Budgets(host_capacity="1GiB"), "a row")
    with pytest.raises(OutOfMemory, match="free memory, cgroup limit"):
        capacity.preflight(1 << 60, Budgets(), "a row")


def test_the_preflight_names_the_capacity_that_stands_whatever_else_runs(monkeypatch):
    budgets = Budgets(host_capacity="2GiB")
    monkeypatch.setattr(capacity, "host_available_bytes", lambda: 1 << 30)
    with pytest.raises(OutOfMemory, match=r"2.00 GiB can be had \(host_capacity\)"):
        capacity.preflight(3 << 30, budgets, "a row")
    with pytest.raises(OutOfMemory, match=r"1.00 GiB can be had \(free memory"):
        capacity.preflight((1 << 30) + 1, budgets, "a row")


def test_a_device_that_others_use_is_refused_after_half_a_minute():
    waited = []
    with pytest.raises(DeviceBusy, match=r"60.00 GiB are taken.*nvidia-smi"):
        capacity.refuse_shared_device(lambda: 60 << 30, waited.append)
    assert sum(waited) == 30
    with pytest.raises(DeviceBusy):
        capacity.refuse_shared_device(lambda: 3 << 30, waited.append)
    taken = iter([60 << 30, 60 << 30, 1 << 29])
    waited.clear()
    capacity.refuse_shared_device(lambda: next(taken), waited.append)
    assert sum(waited) == 2


def test_a_trusted_capacity_stands_where_less_is_reported():
    large = Budgets(host_capacity="100TiB")
    assert capacity.host_limit_bytes(large) < 1 << 46
    trusted = large.model_copy(update={"trust_host_capacity": True})
    assert capacity.host_limit_bytes(trusted) == 100 << 40
    capacity.preflight(1 << 46, trusted, "a row")


def test_a_rivals_host_bytes_follow_its_parameters():
    assert capacity.rival_host_bytes("megatrain", 10, 2) == 140
    assert capacity.rival_host_bytes("resident", 10, 2) == 0


def test_a_disk_too_small_is_named_before_it_is_full():
    assert capacity.short_of_disk("zero-infinity", 10**9, 21 * 10**9) is None
    reason = capacity.short_of_disk("zero-infinity", 10**9, 10**9)
    assert "18.63 GiB" in reason
    assert "scratch" in reason
    assert capacity.short_of_disk("lazytrain", 10**12, 0) is None


def test_a_held_device_names_its_holder(tmp_path):
    code = (
        "import sys, pathlib; from lazytrain.train.lock import hold\n"
        "with hold('gpu0', pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DeviceBusy, match=str(holder.pid)), hold("gpu0", tmp_path):
        pass
    with hold("gpu1", tmp_path):
        pass
    holder.kill()
    holder.wait()
    with hold("gpu0", tmp_path):
        assert (tmp_path / "lazytrain-gpu0.lock").read_text().strip() == str(
            os.getpid()
        )
    holder.stdin.close()
    holder.stdout.close()


def test_systems_without_their_tools_say_what_to_install(monkeypatch):
    assert availability.why_not("megatrain", "cpu") is None
    assert "choose one of" in str(availability.why_not("nonsense", "cpu"))
    assert "GPU" in str(availability.why_not("zero3-offload-liger", "cpu"))
    monkeypatch.setattr(availability, "_has_libaio", lambda: False)
    assert "libaio-dev" in str(availability.why_not("zero-infinity", "cpu"))
    monkeypatch.setattr(availability.shutil, "which", lambda name: None)
    assert "g++" in str(availability.why_not("zero3-offload", "cpu"))
    monkeypatch.setattr(availability, "_has", lambda package: False)
    assert "baselines" in str(availability.why_not("zero3-offload", "cpu"))


@pytest.mark.parametrize("limit", [0, 1, 7, 24, 63, 64, 65, 500])
@pytest.mark.parametrize(("low", "high"), [(1, 64), (8, 64), (16, 256), (64, 64)])
def test_the_search_brackets_the_limit_in_four_probes(limit, low, high):
    asked = []

    def fits(batch):
        asked.append(batch)
        return batch <= limit

    found = largest_feasible(fits, Bracket(low, high))
    assert len(asked) <= 4
    assert len(set(asked)) == len(asked)
    assert found.feasible <= limit
    assert found.infeasible is None or found.infeasible > limit
    if limit >= high:
        assert found.feasible == high
    elif limit >= low:
        assert found.feasible >= low


def test_an_empty_bracket_is_refused():
    with pytest.raises(InvalidInput):
        Bracket(8, 4)


@pytest.mark.parametrize(
    ("key", "value", "is_missing"),
    [
        ("data", "synthetic", False),
        ("data", "meta-math/MetaMathQA", False),
        ("data", "./rows", True),
        ("data", "folder/rows.parquet", True),
        ("data", "/nonexistent", True),
        ("test_data", "", False),
        ("test_data", "../gone.jsonl", True),
        ("weights", "random", False),
        ("weights", "Qwen/Qwen2.5-3B", False),
        ("weights", "gpt2", False),
        ("weights", "/nope", True),
        ("weights", "model.gguf", True),
        ("weights", ".", False),
    ],
)
def test_a_path_that_is_not_there_is_told_from_an_id_of_the_hub(key, value, is_missing):
    config = PipelineConfig.model_validate({"accelerators": {}, key: value})
    said = availability.missing_input(config)
    assert (said is not None) == is_missing
    if said:
        assert said.startswith(f"{key} = {value!r}")
