"""The compiled update for a GPU is the reference's, compiled once for every shape."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from moments import check_moments
from torch._dynamo.testing import CompileCounterWithBackend

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim import compiled, compiled_step, reference
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.compiled import CompiledAdamW
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import BLOCK, TensorSlice

SHAPES = (2, 5, 3, 9)  # blocks of each part


def part(adamw, blocks, seed):
    """Return a part's state with normal weights and nothing else yet."""
    numel = blocks * BLOCK
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(numel, generator=generator).to(adamw.weight_dtype)
    return adamw.new_state(weight, [TensorSlice(f"p{seed}", 0, numel, 0.1)], [True])


def gradients(step, dtype):
    """Return gradients of many sizes, some of them zero, one for each part."""
    found = []
    for seed, blocks in enumerate(SHAPES):
        generator = torch.Generator().manual_seed(100 * step + seed)
        values = torch.randn(blocks * BLOCK, generator=generator)
        values *= torch.logspace(-9, 0, values.numel())
        values[::7] = 0
        found.append(values.to(dtype))
    return found


def tensors(state):
    return {"weight": state.weight, **state.tensors()}


def run(master, steps=3, backend="inductor"):
    """Step the same parts by the reference and compiled; return both."""
    settings = OptimizerSettings(
        master="fp32-split" if master == "fp32" else master, threads=1
    )
    dtype = torch.float32 if master == "fp32" else torch.bfloat16
    adamw = HostAdamW(settings, dtype, kernel="reference")
    states = [part(adamw, blocks, seed) for seed, blocks in enumerate(SHAPES)]
    truth = copy.deepcopy(states)
    engine = CompiledAdamW(settings, states, backend)
    for step in range(1, steps + 1):
        given = gradients(step, dtype)
        rate = 1e-3 / step
        engine.update(given, step=step, learning_rate=rate, scale=0.5 / step)
        constants = StepConstants.make(settings, step, rate, 0.5 / step)
        for state, gradient in zip(truth, given, strict=True):
            reference.update(state, gradient, constants)
    return states, truth


def masters_of(state):
    """Return the weights in fp32, remainders included."""
    if state.remainder is None:
        return state.weight.float()
    high = state.weight.view(torch.int16).to(torch.int32) << 16
    return (high + state.remainder.to(torch.int32)).view(torch.float32)


def check(state, expected):
    """Refuse a state that is further from the reference than fused products explain."""
    difference = (masters_of(state) - masters_of(expected)).abs()
    limit = 1e-6 * masters_of(expected).abs() + 1e-9
    if state.master.startswith("bf16"):  # a rounding may fall the other way
        assert (difference > 0).float().mean() < 1e-3
        limit = 2.0**-7 * masters_of(expected).abs()
    assert (difference <= limit).all()
    check_moments(state, expected, scale_rtol=1e-6)


@pytest.mark.parametrize("master", ["fp32", "fp32-split", "bf16", "bf16-stochastic"])
def test_it_follows_the_reference(master):
    for state, expected in zip(*run(master), strict=True):
        check(state, expected)


def test_one_graph_serves_every_shape_step_and_chunk(monkeypatch):
    monkeypatch.setattr(compiled, "CHUNK_BLOCKS", 4)
    monkeypatch.setattr(compiled, "_STEP_BLOCKS", 2)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    states, truth = run("fp32-split", steps=4, backend=counter)
    assert counter.frame_count == 1
    for state, expected in zip(states, truth, strict=True):
        check(state, expected)


@pytest.mark.parametrize("name", ["_inverse", "_line"])
def test_a_wrong_rounding_is_seen(monkeypatch, name):
    right = getattr(compiled_step, name)
    monkeypatch.setattr(compiled_step, name, lambda *given: right(*given) * 0.995)
    torch._dynamo.reset()
    states, truth = run("fp32-split", steps=1, backend="aot_eager")
    torch._dynamo.reset()
    with pytest.raises(AssertionError):
        check(states[0], truth[0])


def test_zero_gradients_and_no_scale_leave_moments_zero():
    settings = OptimizerSettings(threads=1)
    adamw = HostAdamW(settings, torch.bfloat16, kernel="reference")
    state = part(adamw, 2, 0)
    before = state.weight.clone()
    engine = CompiledAdamW(settings, [state], "aot_eager")
    engine.update([torch.zeros_like(state.weight)], step=1, learning_rate=0.0, scale=1)
    assert torch.equal(state.weight, before)
    assert not state.moments.exp_avg_scale.any()
    assert not state.moments.exp_avg_sq_code.any()


@pytest.mark.parametrize("factor", ["one block", "part of a block", "fp32"])
def test_other_parts_are_refused(factor):
    settings = OptimizerSettings(threads=1)
    adamw = HostAdamW(settings, torch.bfloat16, kernel="reference")
    numel = BLOCK if factor == "one block" else 2 * BLOCK + (factor != "fp32") * 64
    piece = TensorSlice("p", 0, numel, 0.0)
    weight = torch.zeros(numel, dtype=torch.bfloat16)
    state = adamw.new_state(weight, [piece], [factor != "fp32"])
    with pytest.raises(InvalidInput):
        CompiledAdamW(settings, [replace(state)])
