"""A layer profile's bytes are exact; its seconds are consistent."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from lazytrain.config import ExecutorSettings, RunRow, rows_of
from lazytrain.errors import InvalidInput
from lazytrain.models.scales import model_config
from lazytrain.profile import layers
from lazytrain.profile.bandwidth import fastest_s
from lazytrain.schedule.execution import micro_batch

SETTINGS = ExecutorSettings(micro_batch_tokens=32, loss_chunk_tokens=8)


def profile(name):
    config = model_config(name)
    bench = layers.bench_for(config, "cpu", batch=4, seq_len=16, settings=SETTINGS)
    return layers.measure_model(bench, "cpu", "tiny", name, SETTINGS)


@pytest.mark.parametrize("name", ["3B-mini", "27B-mini"])
def test_parameters_add_up_to_the_models(name):
    found = profile(name)
    model = AutoModelForCausalLM.from_config(model_config(name))
    count = {cost.layer_type: cost.num_parameters for cost in found.layers}
    total = sum(count[kind] for kind in found.layer_types)
    total += found.embedding_parameters + found.head_parameters
    assert total == sum(p.numel() for p in model.parameters())
    assert found.tokens == 32
    for cost in found.layers:
        assert cost.boundary_bytes == 32 * found.hidden_size * 4
        assert cost.weight_bytes == 4 * cost.num_parameters
        inputs, everything = cost.levels
        assert inputs.kept_bytes == cost.boundary_bytes
        assert everything.kept_bytes > inputs.kept_bytes
        assert 0 <= everything.backward_s <= inputs.backward_s
        assert inputs.forward_s > 0


def test_kept_bytes_are_those_of_a_known_layer():
    bench = layers.bench_for(model_config("3B-mini"), "cpu", 1, 16, SETTINGS)
    linear = torch.nn.Linear(96, 96, bias=False)
    layer = layers.TimedLayer(bench, linear, {})
    hidden = bench.hidden().requires_grad_()
    # A linear layer keeps its input for the weight's gradient, and its own weight.
    assert layer.kept_bytes(hidden) == hidden.numel() * 4


@pytest.mark.parametrize(
    ("batch", "seq_len", "tokens", "expected"),
    [(8, 256, 2048, 8), (8, 256, 1000, 2), (6, 100, 450, 3), (7, 1024, 10, 1)],
)
def test_micro_batches_divide_the_batch(batch, seq_len, tokens, expected):
    assert micro_batch(batch, seq_len, tokens) == expected


def test_a_scale_outside_the_sheet_is_an_error():
    row = RunRow(
        accelerator="cpu",
        scale="3B",
        system="lazytrain",
        model="3B-mini",
        stands_for="x",
        batch=1,
        seq_len=8,
    )
    assert rows_of([row], "cpu", "3B") == [row]
    with pytest.raises(InvalidInput, match="run sheet"):
        rows_of([row], "cpu", "70B")


def test_the_fewest_seconds_are_taken():
    calls = []
    assert fastest_s(lambda: calls.append(1), repeats=3) >= 0
    assert len(calls) == 4
