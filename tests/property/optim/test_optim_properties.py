"""The kernels at the edges: sizes, alignment, values, step counts, refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim import native
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.clip import SkipCounter, clip_factor, square_sums
from lazytrain.optim.state import TensorSlice

SIZES = (0, 1, 63, 64, 65, 4095, 4096, 4097)
MASTERS = ("fp32-split", "bf16", "bf16-stochastic")
KERNELS = [
    isa
    for isa in native.ISAS
    if native.ISAS.index(isa) <= native.ISAS.index(native.library().best_isa)
]
few = settings(max_examples=25)


def part(sizes, gaps, dtype, misalign=0, seed=0):
    """A random part: tensors of the given sizes behind the given gaps."""
    slices, end = [], 0
    for index, (size, gap) in enumerate(zip(sizes, gaps, strict=True)):
        slices.append(TensorSlice(f"t{index}", end + gap, size, 0.1 * index))
        end += gap + size
    generator = torch.Generator().manual_seed(seed)
    backing = torch.randn(end + misalign + 3, generator=generator).to(dtype)
    return backing, backing[misalign : misalign + end], slices


def everything(state):
    return [state.weight, *state.tensors().values()]


def raw(tensors):
    return [tensor.clone().contiguous().view(torch.uint8) for tensor in tensors]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@few
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=3),
    gaps=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    misalign=st.integers(0, 3),
    eight_bit=st.lists(st.booleans(), min_size=3, max_size=3),
    master=st.sampled_from(MASTERS),
    is_fp32=st.booleans(),
    gradient_is_fp32=st.booleans(),
)
def test_every_path_agrees_at_any_size_and_alignment(
    sizes, gaps, misalign, eight_bit, master, is_fp32, gradient_is_fp32
):
    dtype = torch.float32 if is_fp32 else torch.bfloat16
    gradient_dtype = torch.float32 if gradient_is_fp32 else torch.bfloat16
    count = len(sizes)
    outcomes = {}
    for kernel in [*KERNELS, "reference"]:
        backing, weight, slices = part(sizes, gaps[:count], dtype, misalign)
        untouched = torch.ones(backing.numel(), dtype=torch.bool)
        for piece in slices:
            first = misalign + piece.offset
            untouched[first : first + piece.numel] = False
        before = backing[untouched].clone()
        optimizer = HostAdamW(
            OptimizerSettings(master=master, threads=1), dtype, kernel=kernel
        )
        state = optimizer.new_state(weight, slices, eight_bit[:count])
        for step in (1, 2):
            _, flat, _ = part(sizes, gaps[:count], gradient_dtype, misalign, seed=step)
            optimizer.update(state, flat, step=step, learning_rate=1e-3, scale=0.5)
        assert torch.equal(backing[untouched], before)
        outcomes[kernel] = everything(state)
    first = outcomes[KERNELS[0]]
    for kernel in KERNELS[1:]:
        assert same(raw(first), raw(outcomes[kernel]))
    torch.testing.assert_close(
        first[0].float(), outcomes["reference"][0].float(), rtol=8e-3, atol=2e-6
    )


@pytest.mark.parametrize("kernel", [*KERNELS, "reference"])
@pytest.mark.parametrize("eight_bit", [False, True])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e-20, 1e15])
def test_extreme_gradients_keep_everything_finite(kernel, eight_bit, value):
    _, weight, slices = part((4097,), (0,), torch.bfloat16)
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.bfloat16, kernel=kernel)
    state = optimizer.new_state(weight, slices, [eight_bit])
    start = weight.clone()
    for step in range(1, 4):
        flat = torch.full_like(weight, value)
        optimizer.update(state, flat, step=step, learning_rate=1e-3, scale=1.0)
    assert all(torch.isfinite(tensor.float()).all() for tensor in everything(state))
    if value == 0.0:
        assert torch.equal(weight, start)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_a_gradient_that_is_not_finite_leaves_every_bit_untouched(
    kernel, bad, eight_bit
):
    _, weight, slices = part((5000, 70), (0, 3), torch.bfloat16)
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.bfloat16, kernel=kernel)
    state = optimizer.new_state(weight, slices, [eight_bit] * 2)
    counter, results = SkipCounter(), []
    for step, poison in ((1, False), (2, True), (3, False)):
        _, flat, _ = part((5000, 70), (0, 3), torch.bfloat16, seed=step)
        if poison:
            flat[4999] = bad
        before = raw(everything(state))
        result = clip_factor(square_sums(flat, slices).tolist(), 1.0)
        if counter.admit(result, step):
            optimizer.update(
                state, flat, step=step, learning_rate=1e-3, scale=result.factor
            )
        results.append(same(before, raw(everything(state))))
    assert results == [False, True, False]
    assert counter.skipped == 1


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": math.nan},
        {"scale": math.inf},
        {"scale": -1.0},
        {"learning_rate": math.nan},
        {"step": 0},
    ],
)
def test_a_number_that_cannot_be_used_is_refused_before_any_write(kernel, wrong):
    _, weight, slices = part((100,), (0,), torch.float32)
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.float32, kernel=kernel)
    state = optimizer.new_state(weight, slices, [False])
    before = raw(everything(state))
    numbers = {"step": 1, "learning_rate": 1e-3, "scale": 1.0, **wrong}
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        optimizer.update(state, torch.ones(100), **numbers)
    assert same(before, raw(everything(state)))


@pytest.mark.parametrize(
    "flat",
    [torch.ones(99), torch.ones(100).half(), torch.ones(200)[::2]],
    ids=["short", "half", "strided"],
)
def test_a_gradient_that_does_not_fit_is_refused(flat):
    _, weight, slices = part((100,), (0,), torch.float32)
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.float32)
    state = optimizer.new_state(weight, slices, [False])
    with pytest.raises(InvalidInput, match="gradient"):
        optimizer.update(state, flat, step=1, learning_rate=1e-3, scale=1.0)


def test_slices_that_overlap_or_leave_the_buffer_are_refused():
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.float32)
    overlap = [TensorSlice("a", 0, 60, 0.0), TensorSlice("b", 59, 10, 0.0)]
    beyond = [TensorSlice("a", 0, 101, 0.0)]
    for slices in (overlap, beyond):
        with pytest.raises(InvalidInput, match=slices[-1].name):
            optimizer.new_state(torch.zeros(100), slices, [False] * len(slices))


@pytest.mark.parametrize("kernel", [*KERNELS, "reference"])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_huge_weight_decay_and_step_counts_beyond_two_to_the_31(kernel, eight_bit):
    weight = torch.randn(5000)
    slices = [TensorSlice("a", 0, 5000, 900.0)]
    optimizer = HostAdamW(OptimizerSettings(threads=1), torch.float32, kernel=kernel)
    state = optimizer.new_state(weight, slices, [eight_bit])
    start = weight.clone()
    for step in (2**31 - 1, 2**31, 2**33):
        flat = torch.full((5000,), 1e-3)
        optimizer.update(state, flat, step=step, learning_rate=1e-3, scale=1.0)
    first = 1e-4 / math.sqrt(1e-9)
    expected, moments = start.double(), (0.0, 0.0)
    for _ in range(3):
        moments = (0.9 * moments[0] + 1e-4, 0.999 * moments[1] + 1e-9)
        update = moments[0] / (math.sqrt(moments[1]) + 1e-8)
        expected = expected * 0.1 - 1e-3 * update
    assert first > 1
    torch.testing.assert_close(weight.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kernel", [*KERNELS, "reference"])
@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("eight_bit", [False, True])
def test_a_resumed_state_continues_with_the_same_bits(kernel, master, eight_bit):
    def run(optimizer, state, steps):
        for step in steps:
            _, flat, _ = part((4097, 9), (0, 7), torch.bfloat16, seed=step)
            optimizer.update(state, flat, step=step, learning_rate=1e-2, scale=1.0)

    options = OptimizerSettings(master=master, threads=1)
    states = []
    for resumes in (False, True):
        optimizer = HostAdamW(options, torch.bfloat16, kernel=kernel)
        _, weight, slices = part((4097, 9), (0, 7), torch.bfloat16)
        state = optimizer.new_state(weight, slices, [eight_bit] * 2)
        run(optimizer, state, range(1, 4))
        if resumes:
            saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
            optimizer = HostAdamW(options, torch.bfloat16, kernel=kernel)
            state = optimizer.new_state(weight.clone(), slices, [eight_bit] * 2)
            for name, tensor in state.tensors().items():
                tensor.copy_(saved[name])
        run(optimizer, state, range(4, 7))
        states.append(raw(everything(state)))
    assert same(*states)
