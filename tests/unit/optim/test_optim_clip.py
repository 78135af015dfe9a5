import logging
import math

import optim_cases as cases
import pytest
import torch

from lazytrain.errors import InvalidInput
from lazytrain.optim import clip, native
from lazytrain.optim.clip import SkipCounter, clip_factor, square_sums
from lazytrain.optim.state import TensorSlice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_square_sums_equal_float64_sums(dtype):
    numel, slices = cases.two_slices(200_001, 37)
    flat = torch.randn(numel).to(dtype)
    expected = [
        flat[p.offset : p.offset + p.numel].double().square().sum().item()
        for p in slices
    ]
    sums = square_sums(flat, slices)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(
        sums.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_square_sums_have_the_same_bits_on_every_path(dtype):
    numel, slices = cases.two_slices(200_001, 37)
    flat = torch.randn(numel).to(dtype)
    library = native.library()
    results = [
        library.square_sums(flat, slices, threads, isa)
        for threads in (1, 3)
        for isa in cases.native_isas()
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_square_sums_of_nothing_and_of_an_empty_tensor():
    assert square_sums(torch.zeros(4), []).numel() == 0
    assert square_sums(torch.ones(4), [TensorSlice("a", 2, 0, 0.0)]).tolist() == [0.0]
    assert square_sums(torch.ones(4).half(), []).numel() == 0


def test_a_slice_outside_the_gradient_is_refused():
    with pytest.raises(InvalidInput, match="outside"):
        square_sums(torch.ones(4), [TensorSlice("a", 2, 3, 0.0)])


@pytest.mark.parametrize("max_norm", [0.01, 1.0, 1e6])
@pytest.mark.parametrize("kernel", cases.kernels())
def test_factor_and_update_equal_clip_grad_norm_then_adamw(max_norm, kernel):
    optimizer, state = cases.make(kernel, torch.float32, False, learning_rate=1e-3)
    slices = state.slices
    parameters = [state.weight[p.offset : p.offset + p.numel].clone() for p in slices]
    rival = torch.optim.AdamW(
        [
            {"params": [parameter], "weight_decay": piece.weight_decay}
            for parameter, piece in zip(parameters, slices, strict=True)
        ],
        lr=1e-3,
    )
    for step in range(1, 6):
        flat = cases.gradient(state, seed=step, scale=0.1)
        result = clip_factor(square_sums(flat, slices).tolist(), max_norm)
        for parameter, piece in zip(parameters, slices, strict=True):
            parameter.grad = flat[piece.offset : piece.offset + piece.numel].clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        assert result.norm == pytest.approx(norm.item(), rel=1e-6)
        rival.step()
        optimizer.update(
            state, flat, step=step, learning_rate=1e-3, scale=result.factor
        )
    for parameter, piece in zip(parameters, slices, strict=True):
        ours = state.weight[piece.offset : piece.offset + piece.numel]
        torch.testing.assert_close(ours, parameter, rtol=1e-5, atol=1e-7)


def test_the_total_is_added_in_fp64_in_the_order_given():
    sums = [1e16, *([1.0] * 1000)]
    total = 0.0
    for value in sums:  # `sum` compensates its error from Python 3.12 on
        total += value
    assert clip_factor(sums, 1.0).norm == math.sqrt(total)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_skipped_counted_and_logged(bad, caplog):
    result = clip_factor([1.0, bad], 1.0)
    assert not result.is_finite
    assert result.factor == 0.0
    counter = SkipCounter()
    with caplog.at_level(logging.WARNING):
        assert not counter.admit(result, step=7)
        assert counter.admit(clip_factor([1.0], 1.0), step=8)
    assert counter.skipped == 1
    assert "step 7 skipped" in caplog.text


def test_no_norm_to_clip_to_is_refused():
    with pytest.raises(InvalidInput, match="max_grad_norm"):
        clip_factor([1.0], 0.0)


def test_without_kernels_the_sums_are_the_same(monkeypatch):
    numel, slices = cases.two_slices()
    flat = torch.randn(numel).bfloat16()
    expected = square_sums(flat, slices)
    monkeypatch.setattr(clip.native, "library", lambda: None)
    torch.testing.assert_close(square_sums(flat, slices), expected, rtol=1e-6, atol=0)
