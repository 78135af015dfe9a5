"""What packed rows' borders take is known before a step takes it."""

from __future__ import annotations

import pytest
import torch
from streaming import small_config

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
    PipelineConfig,
    Purpose,
    RunRow,
    SolverSettings,
)
from lazytrain.errors import InvalidInput
from lazytrain.executor.packing import Borders, ConditionMaker
from lazytrain.models.decoder import Decoder
from lazytrain.records import read
from lazytrain.schedule.instance import Instance
from lazytrain.train.planning import border_bytes, make_plan

CPU = torch.device("cpu")


def row(model, batch, seq_len):
    return RunRow(
        accelerator="cpu",
        scale="x",
        system="lazytrain",
        model=model,
        stands_for=model,
        batch=batch,
        seq_len=seq_len,
    )


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["3B-mini", "27B-mini"])
def test_the_bytes_are_those_of_the_executor_s_own_tensors(name, dtype, micro_batch):
    config = small_config(name)
    decoder = Decoder(config)
    tokens = 48
    documents = torch.arange(tokens).expand(4, tokens) // 20
    positions = torch.arange(tokens).expand(4, tokens) % 20
    rotary = decoder.rotary(tokens, CPU, getattr(torch, dtype))
    borders = Borders(positions.contiguous(), documents.contiguous())
    conditions = ConditionMaker(decoder, CPU).of(rotary, borders, 4, micro_batch)
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for one in conditions
        for tensor in (one.cos, one.sin, *one.masks.values())
    }
    for tensor in (borders.positions, borders.documents):
        storages[tensor.untyped_storage().data_ptr()] = tensor.nbytes
    executor = ExecutorSettings(dtype=dtype, micro_batch_tokens=micro_batch * tokens)
    found = border_bytes(config, row(name, 4, tokens), executor)
    assert found.held == sum(storages.values())
    assert found.passing >= micro_batch * tokens**2 * 2
    # In waves, one wave's masks and tables are there, and all rows' positions.
    waves = executor.model_copy(update={"order": "batch-major"})
    positions = sum(t.nbytes for t in (borders.positions, borders.documents))
    one = border_bytes(config, row(name, 4, tokens), waves)
    assert one.held == (found.held - positions) * micro_batch // 4 + positions


def pipeline(gpu_cap):
    purpose = Purpose(num_steps=1, warmup_steps=0, learning_rate=1e-3)
    settings = AcceleratorSettings(
        executor=ExecutorSettings(micro_batch_tokens=128, chunk_bytes="1MiB"),
        budgets=Budgets(gpu_cap=gpu_cap, cpu_activations="8MiB"),
        throughput=purpose,
        quality=purpose,
    )
    return PipelineConfig(
        accelerators={"cpu": settings}, solver=SolverSettings(time_limit_s=5)
    )


def test_the_planner_may_not_give_away_what_borders_take(tmp_path):
    config, given = small_config(), row("3B-mini", 4, 128)
    pipe = pipeline("64MiB")
    make_plan(given, pipe, config, tmp_path / "plain")
    make_plan(given, pipe, config, tmp_path / "packed", pack=True)
    executor = pipe.accelerators["cpu"].executor
    taken = border_bytes(config, given, executor)
    budgets = [
        read(Instance, tmp_path / name / "instance.json").budget_bytes.gpu
        for name in ("plain", "packed")
    ]
    assert budgets[0] - budgets[1] == taken.held + taken.passing


def test_borders_larger_than_the_cap_are_refused_with_their_bytes(tmp_path):
    given = row("3B-mini", 64, 1024)
    with pytest.raises(InvalidInput, match="borders of packed rows"):
        make_plan(given, pipeline("64MiB"), small_config(), tmp_path, pack=True)
