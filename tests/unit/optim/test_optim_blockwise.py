import bitsandbytes.functional as oracle
import optim_cases as cases
import pytest
import torch

from lazytrain.optim import blockwise, native
from lazytrain.optim.state import BLOCK

SIGNS = (True, False)


def spread_values(is_signed, count=3 * BLOCK, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator)
    values *= torch.exp(spread * torch.randn(count, generator=generator))
    return values if is_signed else values.square()


@pytest.mark.parametrize("is_signed", SIGNS)
def test_codebook_is_the_published_dynamic_map(is_signed):
    ours = blockwise.codebook(is_signed)
    theirs = oracle.create_dynamic_map(is_signed)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert (ours.diff() > 0).all()
    assert 0.0 in ours


@pytest.mark.parametrize("is_signed", SIGNS)
def test_encoding_is_as_near_as_the_nearest_code_of_the_oracle(is_signed):
    values = spread_values(is_signed, spread=1.0)
    codes, scale = blockwise.encode(values, is_signed)
    ours = blockwise.decode(codes, scale, is_signed)
    table = oracle.create_dynamic_map(is_signed)
    normal = values.view(-1, BLOCK) / scale.unsqueeze(1)
    middles = (table[1:] + table[:-1]) / 2
    nearest = table[torch.bucketize(normal, middles)] * scale.unsqueeze(1)
    error = (ours - values).abs()
    best = (nearest.view(-1) - values).abs()
    # Cells meet at decade borders, not half-way between codes, and a second moment
    # above zero is not stored as zero: both cost a small share of the values.
    assert (error > best + 1e-6 * values.abs()).float().mean() < 0.08
    assert error.mean() < 1.03 * best.mean()


@pytest.mark.parametrize("is_signed", SIGNS)
def test_every_code_decodes_to_a_value_that_encodes_to_it(is_signed):
    table = blockwise.codebook(is_signed)
    values = torch.cat((table, torch.zeros(BLOCK - 256)))
    codes, scale = blockwise.encode(values, is_signed)
    assert scale.item() == table[-1].item()
    assert torch.equal(codes[:256].int(), torch.arange(256, dtype=torch.int32))


@pytest.mark.parametrize("is_signed", SIGNS)
def test_relative_error_is_bounded_in_the_upper_decades(is_signed):
    values = torch.logspace(-5, 0, BLOCK)
    codes, scale = blockwise.encode(values, is_signed)
    error = (blockwise.decode(codes, scale, is_signed) - values).abs() / values
    halves = 2 if is_signed else 1
    assert error[values > 0.1].max() < 0.036 * halves
    assert error[values > 0.01].max() < 0.071 * halves


def test_zero_stays_zero_and_a_tiny_second_moment_does_not_become_zero():
    values = torch.zeros(BLOCK)
    values[0], values[1] = 1.0, 1e-12
    codes, scale = blockwise.encode(values, is_signed=False)
    decoded = blockwise.decode(codes, scale, is_signed=False)
    assert decoded[1] > 0
    assert (decoded[2:] == 0).all()


def test_the_negative_maximum_does_not_change_its_sign():
    values = torch.zeros(BLOCK)
    values[:2] = torch.tensor([-1.0, 0.5])
    codes, scale = blockwise.encode(values, is_signed=True)
    assert blockwise.decode(codes, scale, is_signed=True)[0] == pytest.approx(
        -0.993, abs=1e-3
    )


@pytest.mark.parametrize("top", [0.0, 1e-45, 1e-39, 2.0**-101, 2.0**-100])
def test_scales_at_the_bottom_of_fp32_give_no_nan(top):
    values = torch.full((BLOCK,), top)
    codes, scale = blockwise.encode(values, is_signed=True)
    decoded = blockwise.decode(codes, scale, is_signed=True)
    assert torch.isfinite(decoded).all()
    assert (decoded == (top if top >= 2.0**-100 else 0.0)).all()


@pytest.mark.parametrize("isa", cases.native_isas())
@pytest.mark.parametrize("is_signed", SIGNS)
def test_kernels_give_the_reference_bits(isa, is_signed):
    library = native.library()
    table = blockwise.codebook(is_signed)
    decoded = library.decode(torch.arange(256, dtype=torch.uint8), 1.0, is_signed, isa)
    assert torch.equal(decoded, table)
    for values in (
        spread_values(is_signed, 2 * BLOCK + 77),
        1e-42 * spread_values(is_signed, BLOCK, spread=0.5),
        torch.zeros(100),
    ):
        codes, scale = blockwise.encode(values, is_signed)
        assert all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(
                library.encode(values, is_signed, isa), (codes, scale), strict=True
            )
        )


@pytest.mark.parametrize("isa", cases.native_isas())
@pytest.mark.parametrize("is_signed", SIGNS)
def test_kernels_agree_on_both_sides_of_every_border(isa, is_signed):
    grid = torch.linspace(0, 1, BLOCK * 128).view(-1, BLOCK)
    grid[:, 0] = 1.0
    codes, _ = blockwise.encode(grid.view(-1), is_signed)
    borders = codes.view(-1, BLOCK)[:, 1:].int().diff() > 0
    left = grid[:, 1:-1][borders]
    near = torch.cat([left, left.nextafter(torch.ones(())), left * (1 + 1e-6)])
    values = torch.cat((torch.ones(1), near))[:BLOCK]
    expected, _ = blockwise.encode(values, is_signed)
    assert torch.equal(native.library().encode(values, is_signed, isa)[0], expected)
