"""The DeepSpeed rows run the real package; compiling its operators takes minutes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import sysconfig

import pytest
import torch

from lazytrain.baselines import operators
from lazytrain.baselines.operators import one_build_at_a_time, remove_leftovers

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from lazytrain.baselines.initial import build_model
from lazytrain.baselines.zero3 import ZeroEngine, ZeroOptions
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.models.scales import model_config
from lazytrain.profile.setup import EngineSetup

config = model_config("3B-mini")
config.num_hidden_layers = 2
config.layer_types = config.layer_types[:2]
cpu = torch.device("cpu")
settings = OptimizerSettings(learning_rate=1e-2, max_grad_norm=0.5)
setup = EngineSetup(
    config, None, settings, ExecutorSettings(), 2, 8, torch.float32, cpu, 3, Path(".")
)
def batch(seed):
    ids = torch.randint(300, (2, 8), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    labels[1, :5] = -100
    return Batch(ids, labels, torch.tensor([8, 8]))
engine = ZeroEngine(setup, ZeroOptions(persistence_threshold=int(sys.argv[1])))
found = []
for seed in range(3):
    step = engine.train_step(batch(seed), 1e-2).result()
    found.append([step.loss, step.grad_norm])
weights = dict(engine.named_weights())
total, count = engine.evaluate_loss(batch(0))
model = build_model(config, 3, torch.float32, cpu)
adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
expected = []
for seed in range(3):
    rows = batch(seed)
    loss = model(rows.input_ids, labels=rows.labels).loss
    adam.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    adam.step()
    expected.append([loss.item(), norm.item()])
rows = batch(0)
after = model(rows.input_ids, labels=rows.labels).loss.item()
errors = [(weights[n] - p).abs().max().item() for n, p in model.named_parameters()]
print(json.dumps({
    "found": found, "expected": expected, "error": max(errors),
    "evaluation": [total / count, after],
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0, 10**9], ids=["gathered", "persistent"])
def test_zero3_takes_the_steps_of_clipped_adamw(threshold):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(threshold)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
    )
    result = json.loads(done.stdout.splitlines()[-1])
    for found, expected in zip(result["found"], result["expected"], strict=True):
        assert found == pytest.approx(expected, rel=1e-3)
    assert result["evaluation"][0] == pytest.approx(result["evaluation"][1], rel=1e-3)
    assert result["error"] < 1e-3


def test_a_killed_builds_lock_file_is_removed(tmp_path, monkeypatch):
    monkeypatch.delenv(operators.FOLDER, raising=False)
    monkeypatch.setenv("LAZYTRAIN_CACHE", str(tmp_path))
    left = tmp_path / "torch_extensions" / "py311_cpu" / "cpu_adam"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "cpu_adam.so").touch()
    with one_build_at_a_time():
        assert not (left / "lock").exists()
        assert (left / "cpu_adam.so").exists()
        assert os.environ[operators.FOLDER] == str(tmp_path / "torch_extensions")
        other = (tmp_path / "torch_extensions" / ".building").open("w")
        with other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert operators.FOLDER not in os.environ


def test_this_interpreters_ninja_comes_first_while_building(tmp_path, monkeypatch):
    monkeypatch.setenv(operators.FOLDER, str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    with one_build_at_a_time():
        assert os.environ["PATH"] == f"{sysconfig.get_path('scripts')}:/usr/bin"
    assert os.environ["PATH"] == "/usr/bin"


def test_a_folder_shared_with_others_keeps_its_locks(tmp_path, monkeypatch):
    monkeypatch.setenv(operators.FOLDER, str(tmp_path))
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    with one_build_at_a_time():
        assert (tmp_path / "cpu_adam" / "lock").exists()
    assert remove_leftovers(tmp_path) == [tmp_path / "cpu_adam" / "lock"]


def test_configuration_offloads_both_and_clips():
    from pathlib import Path

    from lazytrain.baselines.zero3 import ZeroOptions, deepspeed_config
    from lazytrain.config import ExecutorSettings, OptimizerSettings
    from lazytrain.profile.setup import EngineSetup

    setup = EngineSetup(
        None,
        None,
        OptimizerSettings(max_grad_norm=0.3),
        ExecutorSettings(),
        32,
        8,
        torch.bfloat16,
        torch.device("cuda"),
        0,
        Path(),
    )
    on_cpu = deepspeed_config(setup, ZeroOptions())
    assert on_cpu["bf16"] == {"enabled": True}
    assert on_cpu["gradient_clipping"] == 0.3
    assert on_cpu["train_micro_batch_size_per_gpu"] == 32
    zero = on_cpu["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    on_disk = deepspeed_config(setup, ZeroOptions(nvme_path="/x"))["zero_optimization"]
    assert on_disk["offload_param"]["nvme_path"] == "/x"
    assert on_disk["offload_optimizer"]["device"] == "nvme"
