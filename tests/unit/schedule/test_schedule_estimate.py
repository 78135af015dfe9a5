"""Shapes from config.json, and estimates of memory, time and largest batch."""

from __future__ import annotations

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.schedule.assumed import Job, Machine
from lazytrain.schedule.estimate import estimate
from lazytrain.schedule.fit import fit, obstacle
from lazytrain.schedule.shapes import model_shape
from lazytrain.units import GIB

QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
HYBRID_27B = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "intermediate_size": 17408,
        "vocab_size": 248320,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
}
LLAMA_TIED = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
MACHINE = Machine(
    gpu_memory_bytes=70 * GIB,
    cpu_memory_bytes=200 * GIB,
    nvme_bytes=0,
    h2d=50e9,
    d2h=50e9,
    nvme_read=3e9,
    nvme_write=3e9,
    flops=600e12,
    optimizer_parameters_per_s=2e9,
)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN_7B, 7_615_616_512),
        (HYBRID_27B, 26_895_998_464),
        (LLAMA_TIED, 134_515_008),
    ],
)
def test_parameters_are_exact_from_the_configuration(config, parameters):
    assert model_shape(config, "m").num_parameters == parameters


def test_mixtures_count_all_and_active_experts():
    config = QWEN_7B | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1000,
    }
    layer = model_shape(config, "m").layers["full_attention"]
    one = 3 * 3584 * 1000
    assert layer.parameters - layer.active_parameters == 6 * one


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_is_no_decoder_is_refused(change, field):
    with pytest.raises(InvalidInput, match=field):
        model_shape(QWEN_7B | change, "m")


def test_an_estimate_lays_open_memory_time_and_limit():
    shape = model_shape(QWEN_7B, "7B")
    answer = estimate(shape, MACHINE, Job(batch=144, seq_len=1024))
    assert answer.fits
    assert answer.gpu_bytes["one_boundary"] == 144 * 1024 * 3584 * 2
    assert answer.cpu_bytes["weights"] == 2 * answer.num_parameters
    assert answer.counts == {"gpu": 29}
    assert answer.peak_bytes["gpu"] < MACHINE.gpu_memory_bytes
    # 8 FLOPs per parameter and token at least, at the rate given.
    least = 8 * shape.num_parameters * 144 * 1024 / MACHINE.flops
    assert least * 0.9 < answer.step_s < least * 1.3
    assert answer.largest_batch > 144


def test_the_largest_batch_fits_and_one_more_does_not():
    shape = model_shape(QWEN_7B, "7B")
    largest, limit = fit(shape, MACHINE, Job(batch=1, seq_len=1024), "batch")
    assert obstacle(shape, MACHINE, Job(largest, 1024)) == ""
    assert obstacle(shape, MACHINE, Job(largest + 1, 1024)) == limit
    assert "GPU" in limit


def test_less_memory_never_fits_more():
    shape = model_shape(QWEN_7B, "7B")
    found = [
        fit(
            shape,
            Machine(**vars(MACHINE) | {"gpu_memory_bytes": gpu * GIB}),
            Job(batch=1, seq_len=1024),
            "batch",
        )[0]
        or 0
        for gpu in (8, 16, 24, 48, 80)
    ]
    assert found == sorted(found)
    assert found[0] == 0 < found[-1]


def test_host_memory_is_named_when_it_is_the_limit():
    shape = model_shape(QWEN_7B, "7B")
    poor = Machine(**vars(MACHINE) | {"cpu_memory_bytes": 64 * GIB})
    answer = estimate(shape, poor, Job(batch=8, seq_len=1024))
    assert not answer.fits
    assert "CPU memory 64.00 GiB is below" in answer.limit
    assert answer.largest_batch is None


def test_the_longest_sequence_can_be_searched():
    shape = model_shape(LLAMA_TIED, "135M")
    longest, _ = fit(shape, MACHINE, Job(batch=4, seq_len=2), "seq_len")
    assert obstacle(shape, MACHINE, Job(4, longest)) == ""
    assert longest > 1024
