import pytest
import torch

from lazytrain.optim import masters


def all_kinds_of_values():
    generator = torch.Generator().manual_seed(0)
    low, high = -(2**31), 2**31
    bits = torch.randint(low, high, (2_000_000,), generator=generator).to(torch.int32)
    values = bits.view(torch.float32)
    edges = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 3.38e38, 1.00390625, -1.00390625])
    return torch.cat((values[values.abs() < 3.38e38], edges))


def test_the_split_master_gives_every_value_back():
    values = all_kinds_of_values()
    joined = masters.join_master(*masters.split_master(values))
    assert torch.equal(joined.view(torch.int32), values.view(torch.int32))


def test_the_high_half_is_the_nearest_bf16_but_at_ties():
    values = all_kinds_of_values()
    high, low = masters.split_master(values)
    differs = high.view(torch.int16) != values.bfloat16().view(torch.int16)
    assert (low[differs] == -(2**15)).all()


def test_round_to_nearest_even_with_a_remainder_would_lose_values():
    """The rounding that the split must not use, shown to be inexact."""
    values = all_kinds_of_values()
    bits = values.view(torch.int32)
    high = values.bfloat16().view(torch.int16).to(torch.int32) << 16
    low = (bits - high).to(torch.int16).to(torch.int32)
    assert ((high + low) != bits).any()


def test_stochastic_rounding_is_unbiased_and_repeatable():
    value = 1.0 + 0.3 * 2.0**-7
    master = torch.full((100_000,), value)
    key = masters.rounding_key(step=3, salt=17)
    random = masters.random_bits(0, master.numel(), key, master.device)
    rounded = masters.round_stochastic(master, random).float()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert rounded.mean().item() == pytest.approx(value, abs=3e-5)
    again = masters.random_bits(50_000, 50_000, key, master.device)
    assert torch.equal(again, random[50_000:])


def test_random_bits_are_uniform_and_differ_from_step_to_step():
    draws = [
        masters.random_bits(
            0, 65_536, masters.rounding_key(step, 0), torch.device("cpu")
        )
        for step in (1, 2)
    ]
    for drawn in draws:
        counts = torch.bincount(drawn >> 12, minlength=16)
        assert (counts - 4096).abs().max() < 300
    together = torch.stack([drawn.float() for drawn in draws])
    assert torch.corrcoef(together)[0, 1].abs() < 0.02
