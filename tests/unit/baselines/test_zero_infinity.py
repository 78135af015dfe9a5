"""ZeRO-Infinity, swapping in many sub-groups, takes the steps of ZeRO-3 on the host.

Both in the same sub-groups: how they split decides in which order the norm is summed.
Some parameters have odd sizes, so that gradients of others lie at no sector's start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lazytrain.baselines import zero_disk
from lazytrain.train import availability

TMPFS = Path("/dev/shm")
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from lazytrain.baselines import zero_infinity, zero3
from lazytrain.baselines.swap_io import SwapMismatch
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup

where, scratch, held = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
configured = zero3.deepspeed_config
def in_sub_groups(setup, options):
    found = configured(setup, options)
    found["zero_optimization"]["sub_group_size"] = 500_000
    if where == "disk":
        parameters = found["zero_optimization"]["offload_param"]
        parameters["buffer_size"] = 2_000_000
        parameters["max_in_cpu"] = held
    return found
zero3.deepspeed_config = in_sub_groups
config = model_config("3B-mini")
config.num_hidden_layers = 2
config.layer_types = config.layer_types[:2]
config.hidden_size, config.intermediate_size, config.vocab_size = 512, 1024, 2000
setup = EngineSetup(
    config, None, OptimizerSettings(max_grad_norm=0.5), ExecutorSettings(), 2, 8,
    torch.bfloat16, torch.device("cpu"), 3, scratch,
)
build = zero_infinity.build if where == "disk" else zero3.build
engine = build(setup)
def train(seed):
    ids = torch.randint(300, (2, 8), generator=torch.Generator().manual_seed(seed))
    batch = Batch(ids, ids.clone(), torch.tensor([8, 8]))
    step = engine.train_step(batch, 1e-3).result()
    return [step.loss, step.grad_norm]
found = [train(seed) for seed in range(4)]
sums = {name: weight.double().sum().item() for name, weight in engine.named_weights()}
swapper = engine._engine.optimizer.optimizer_swapper
groups = list(swapper.swap_params_info.values()) if swapper else []
error = None
if groups:
    spoilt = Path(groups[1].get_swap_paths()[0])
    spoilt.write_bytes(bytes(spoilt.stat().st_size))
    try:
        train(4)
    except SwapMismatch as mismatch:
        error = str(mismatch)
engine.close()
result = {"steps": found, "sums": sums, "groups": len(groups), "error": error}
print(json.dumps(result))
"""


def _train(where: str, scratch: Path, held: int = 0) -> dict:
    """Train in a process; a disk run holds at most ``held`` parameters on the host."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where, str(scratch), str(held)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
    )
    return json.loads(done.stdout[done.stdout.rindex('{"steps"') :])


def test_threads_are_bounded_by_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert zero_disk.disk_io()["intra_op_parallelism"] == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert zero_disk.disk_io()["intra_op_parallelism"] == 8


def test_a_buffer_holds_the_largest_parameter():
    zero = zero_disk.disk_offload("/x", 311_164_928, pin_memory=True)
    assert zero["offload_param"]["buffer_size"] == 311_164_928
    assert zero["offload_optimizer"]["buffer_count"] == 12
    assert zero["stage3_max_reuse_distance"] == 0


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    return _train("host", tmp_path_factory.mktemp("host"))


@pytest.mark.slow
@pytest.mark.skipif(
    availability.why_not("zero-infinity", "cpu") is not None,
    reason="needs DeepSpeed, a compiler and libaio's headers (libaio-dev)",
)
@pytest.mark.parametrize("held", [0, 10**9], ids=["parameters-read", "parameters-held"])
@pytest.mark.parametrize("folder", ["disk", "tmpfs"])
def test_swapping_takes_the_steps_of_zero3_offload_and_finds_a_spoilt_file(
    folder, held, tmp_path, on_host
):
    if folder == "tmpfs" and not os.access(TMPFS, os.W_OK):
        pytest.skip("there is no /dev/shm")
    parent = TMPFS if folder == "tmpfs" else tmp_path
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        swapped = _train("disk", Path(scratch), held)
    assert swapped["groups"] >= 4
    assert swapped["steps"] == on_host["steps"]
    assert swapped["sums"] == on_host["sums"]
    assert "marks" in swapped["error"]
