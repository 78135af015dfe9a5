"""ZeRO-Infinity, swapping in many sub-groups, takes the steps of ZeRO-3 on the host.

Both in the same sub-groups: how they split decides in which order the norm is summed.
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
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup

configured = zero3.deepspeed_config
def in_sub_groups(setup, options):
    found = configured(setup, options)
    found["zero_optimization"]["sub_group_size"] = 500_000
    return found
zero3.deepspeed_config = in_sub_groups
config = model_config("3B-mini")
config.num_hidden_layers = 2
config.layer_types = config.layer_types[:2]
config.hidden_size, config.intermediate_size, config.vocab_size = 512, 1024, 2000
setup = EngineSetup(
    config, None, OptimizerSettings(max_grad_norm=0.5), ExecutorSettings(), 2, 8,
    torch.bfloat16, torch.device("cpu"), 3, Path(sys.argv[2]),
)
build = zero_infinity.build if sys.argv[1] == "disk" else zero3.build
engine = build(setup)
found = []
for seed in range(4):
    ids = torch.randint(300, (2, 8), generator=torch.Generator().manual_seed(seed))
    batch = Batch(ids, ids.clone(), torch.tensor([8, 8]))
    step = engine.train_step(batch, 1e-3).result()
    found.append([step.loss, step.grad_norm])
sums = {name: weight.double().sum().item() for name, weight in engine.named_weights()}
swapper = engine._engine.optimizer.optimizer_swapper
groups = len(swapper.swap_params_info) if swapper else 0
engine.close()
print(json.dumps({"steps": found, "sums": sums, "groups": groups}))
"""


def _train(where: str, scratch: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where, str(scratch)],
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


@pytest.mark.slow
@pytest.mark.skipif(
    availability.why_not("zero-infinity", "cpu") is not None,
    reason="needs DeepSpeed, a compiler and libaio's headers (libaio-dev)",
)
@pytest.mark.skipif(
    not os.access(TMPFS, os.W_OK),
    reason="needs a tmpfs: DeepSpeed's unaligned direct reads fail on a disk",
)
def test_pipelined_swapping_takes_the_steps_of_zero3_offload(tmp_path):
    with tempfile.TemporaryDirectory(dir=TMPFS) as scratch:
        on_disk = _train("disk", Path(scratch))
    on_host = _train("host", tmp_path)
    assert on_disk["groups"] >= 4
    assert on_disk["steps"] == on_host["steps"]
    assert on_disk["sums"] == on_host["sums"]
