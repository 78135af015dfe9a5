"""On a GPU: the resident rival compiled, against autograd and the plain update."""

import copy
import math
from pathlib import Path

import pytest
import torch
from moments import check_moments
from streaming import (
    random_batch,
    reference_gradients,
    relative_error,
    small_config,
)

from lazytrain.baselines.resident import ResidentEngine
from lazytrain.baselines.resident_state import ResidentAdamW
from lazytrain.config import ExecutorSettings, OptimizerSettings
from lazytrain.executor.bodies import num_graphs
from lazytrain.optim import reference
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.compiled import CompiledAdamW
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import BLOCK, TensorSlice
from lazytrain.profile.setup import EngineSetup

CUDA = torch.device("cuda", 0)
SHAPES = (2, 300, 9000)  # blocks; the last is two chunks


def engine(dtype, *, body, recompute, layers=4):
    config = small_config("7B-mini", layers=layers)
    setup = EngineSetup(
        model_config=config,
        state_dict=None,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        executor=ExecutorSettings(loss_chunk_tokens=64, body=body),
        batch=4,
        seq_len=64,
        dtype=dtype,
        device=CUDA,
        seed=5,
        scratch=Path(),
    )
    return ResidentEngine(setup, recompute=recompute)


def gradients(found, batch):
    """Return the loss and each gradient of one step, without the update."""
    seen = {}

    def note(**_):
        seen.update({n: p.grad.float().cpu() for n, p in found._named})

    found._adamw.update = note
    return found.train_step(batch, 1e-3).result().loss, seen


def truth(found, batch, dtype):
    """Return loss and gradients by plain autograd on an engine's weights."""
    weights = dict(found.named_weights())
    config = small_config("7B-mini", layers=4)
    loss, grads = reference_gradients(config, weights, batch, dtype, "cuda")
    return loss, {name: value.float().cpu() for name, value in grads.items()}


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("body", ["eager", "compile"])
def test_fp32_gradients_match_autograd(body, recompute):
    found = engine(torch.float32, body=body, recompute=recompute)
    batch = random_batch(small_config("7B-mini").vocab_size, tokens=64)
    expected, true = truth(found, batch, torch.float32)
    loss, grads = gradients(found, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, value in grads.items():
        assert relative_error(value, true[name]) < 1e-4, name


@pytest.mark.parametrize("recompute", [True, False])
def test_bf16_gradients_are_as_good_as_autograds(recompute):
    found = engine(torch.bfloat16, body="compile", recompute=recompute)
    batch = random_batch(small_config("7B-mini").vocab_size, tokens=64)
    _, plain = truth(found, batch, torch.bfloat16)
    _, true = truth(found, batch, torch.float32)
    _, grads = gradients(found, batch)
    for name, value in grads.items():
        own = relative_error(plain[name], true[name])
        assert relative_error(value, true[name]) < 1.5 * own + 5e-3, name


def test_steps_compile_nothing_again_and_lower_the_loss():
    found = engine(torch.bfloat16, body="compile", recompute=True, layers=8)
    batch = random_batch(small_config("7B-mini").vocab_size, tokens=64)
    losses = [found.train_step(batch, 1e-3).result().loss]
    graphs = num_graphs()
    losses += [found.train_step(batch, 1e-3 / n).result().loss for n in range(1, 6)]
    assert num_graphs() == graphs
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    assert found.kernel == "torch-compiled"


def parts(settings, dtype):
    """Return states of many sizes on the device."""
    adamw = HostAdamW(settings, dtype, kernel="reference")
    states = []
    for seed, blocks in enumerate(SHAPES):
        generator = torch.Generator(CUDA).manual_seed(seed)
        numel = blocks * BLOCK
        weight = torch.randn(numel, device=CUDA, generator=generator).to(dtype)
        piece = TensorSlice(f"p{seed}", 0, numel, 0.1)
        states.append(adamw.new_state(weight, [piece], [True]))
    return states


def noise(step, dtype):
    found = []
    for seed, blocks in enumerate(SHAPES):
        generator = torch.Generator(CUDA).manual_seed(100 * step + seed)
        values = torch.randn(blocks * BLOCK, device=CUDA, generator=generator)
        values *= torch.logspace(-9, 0, values.numel(), device=CUDA)
        found.append(values.to(dtype))
    return found


def check(state, expected, rate):
    """Codes differ at the cells' borders at most, weights by what that is worth."""
    check_moments(state, expected, scale_rtol=1e-5)
    assert (state.weight != expected.weight).float().mean() < 2e-3
    torch.testing.assert_close(
        state.weight, expected.weight, rtol=2.0**-7, atol=0.1 * rate
    )


@pytest.mark.parametrize("master", ["fp32-split", "bf16", "bf16-stochastic"])
def test_the_compiled_update_follows_the_reference(master):
    settings = OptimizerSettings(master=master)
    expected = parts(settings, torch.bfloat16)
    for step in (1, 2, 3):
        # From the same state each time: a code that fell into the next cell leads its
        # successors away from the reference's, by more than one cell in the end.
        states = copy.deepcopy(expected)
        compiled = CompiledAdamW(settings, states)
        given = noise(step, torch.bfloat16)
        before = num_graphs()
        compiled.update(given, step=step, learning_rate=1e-3, scale=0.5)
        assert step == 1 or num_graphs() == before
        constants = StepConstants.make(settings, step, 1e-3, 0.5)
        for state, gradient in zip(expected, given, strict=True):
            reference.update(state, gradient, constants)
        for state, true in zip(states, expected, strict=True):
            check(state, true, 1e-3)
    states[1].moments.exp_avg_code[:4096] += 3
    with pytest.raises(AssertionError):
        check(states[1], expected[1], 1e-3)


def test_a_large_update_needs_little_beside_the_state():
    settings = OptimizerSettings(master="fp32-split")
    numel = 65536 * BLOCK  # 256 Mi weights: one fp32 copy would be 1 GiB
    weight = torch.nn.Parameter(torch.zeros(numel, device=CUDA, dtype=torch.bfloat16))
    adamw = ResidentAdamW(settings, [("table", weight)], use_compiled=True)
    weight.grad = torch.ones_like(weight)
    adamw.update(step=1, learning_rate=1e-3, scale=1.0)
    weight.grad = torch.ones_like(weight)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    adamw.update(step=2, learning_rate=1e-3, scale=1.0)
    assert torch.cuda.max_memory_allocated() - before < 2**30
    assert weight.float().mean().item() == pytest.approx(-2e-3, rel=1e-2)
