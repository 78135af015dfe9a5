"""8-bit state against fp32 state, with its outliers counted."""

import optim_cases as cases
import pytest
import torch

from lazytrain.optim import blockwise, masters
from lazytrain.optim.state import bytes_per_parameter

LR = 1e-3


def run_pair(kernel, steps, noise):
    """Updates of the same part under both state formats, from equal gradients."""
    pairs = [
        cases.make(kernel, torch.bfloat16, eight_bit, sizes=(20_000, 100), threads=1)
        for eight_bit in (False, True)
    ]
    direction = cases.gradient(pairs[0][1], seed=99)
    for step in range(1, steps + 1):
        flat = direction + noise * cases.gradient(pairs[0][1], seed=step)
        for optimizer, state in pairs:
            optimizer.update(
                state, flat.bfloat16(), step=step, learning_rate=LR, scale=1.0
            )
    return [masters.join_master(s.weight, s.remainder) for _, s in pairs]


@pytest.mark.parametrize("kernel", cases.kernels())
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_eight_bit_state_tracks_fp32_within_counted_outliers(kernel, noise):
    steps = 50
    wide, narrow = run_pair(kernel, steps, noise)
    difference = (narrow - wide).abs() / (LR * steps)
    # In units of the longest way a weight can go: half a per cent of the weights may
    # stray by more than a tenth, none by more than a half.
    assert (difference > 0.1).float().mean() < 0.005
    assert difference.max() < 0.5
    assert difference.mean() < 0.02


@pytest.mark.parametrize("kernel", cases.kernels())
def test_one_step_strays_only_by_the_rounding_of_the_codes(kernel):
    """The first update uses unquantised moments, so it equals that of fp32 state."""
    wide, narrow = run_pair(kernel, steps=1, noise=1.0)
    assert (narrow - wide).abs().max() < 1e-5 * LR + 2e-7


def test_a_wrong_decay_of_the_scale_would_be_seen():
    """Plant a fault: scales that are twice too large stray beyond the bound."""
    optimizer, state = cases.make("auto", torch.bfloat16, True, sizes=(20_000, 100))
    _, right = cases.make("auto", torch.bfloat16, True, sizes=(20_000, 100))
    for step in range(1, 11):
        flat = cases.gradient(state, seed=99).bfloat16()
        for each in (state, right):
            optimizer.update(each, flat, step=step, learning_rate=LR, scale=1.0)
        state.moments.exp_avg_scale.mul_(2)
    stray = masters.join_master(state.weight, state.remainder)
    stray = (stray - masters.join_master(right.weight, right.remainder)).abs()
    assert (stray / (LR * 10) > 0.1).float().mean() > 0.5


@pytest.mark.parametrize("isa", cases.native_isas())
def test_kernels_track_the_reference_code_by_code(isa):
    states = []
    for kernel in (isa, "reference"):
        optimizer, state = cases.make(kernel, torch.bfloat16, True, sizes=(9000, 50))
        for step in range(1, 11):
            flat = cases.gradient(state, seed=step).bfloat16()
            optimizer.update(state, flat, step=step, learning_rate=LR, scale=0.5)
        states.append(state.moments)
    ours, theirs = states
    for name in ("exp_avg_code", "exp_avg_sq_code"):
        a, b = getattr(ours, name).int(), getattr(theirs, name).int()
        assert (a != b).float().mean() < 1e-3
        assert (a - b).abs().max() <= 1


def test_a_block_never_straddles_two_tensors():
    """A huge gradient in one tensor leaves its neighbour's codes alone."""
    snapshots = []
    for factor in (1.0, 1e4):
        optimizer, state = cases.make("auto", torch.bfloat16, True, sizes=(5000, 100))
        flat = cases.gradient(state, seed=1)
        flat[: state.slices[0].numel] *= factor
        optimizer.update(state, flat.bfloat16(), step=1, learning_rate=LR, scale=1.0)
        spot = state.placements[1]
        held = slice(spot.state_offset, spot.state_offset + 100)
        snapshots.append(state.moments.exp_avg_code[held].clone())
    assert torch.equal(*snapshots)


def test_host_bytes_per_parameter_are_those_of_the_plan():
    numel = 100 * blockwise.BLOCK
    for eight_bit, limit in ((True, 8.1), (False, 14.1)):
        _, state = cases.make("auto", torch.bfloat16, eight_bit, sizes=(numel, 64))
        held = state.host_bytes + 2 * state.weight.numel()
        per_parameter = (held + 2 * state.weight.numel()) / (numel + 64)
        assert per_parameter <= limit
        assert per_parameter == pytest.approx(
            bytes_per_parameter("fp32-split", eight_bit), abs=0.02
        )
