"""Units: every suffix, refusals, and round numbers for people."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.errors import InvalidInput
from lazytrain.units import format_bytes, format_rate, gib, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1B", 1),
        ("1 kB", 1000),
        ("1KiB", 1024),
        ("2MB", 2_000_000),
        ("2 MiB", 2 * 2**20),
        ("15GB", 15_000_000_000),
        ("80GiB", 80 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("2TB", 2 * 10**12),
        (" 2 TiB ", 2 * 2**40),
    ],
)
def test_sizes_with_their_unit(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["80", "", "GiB", "80 GiBs", "-1GiB", "1e3MB", "8 0GB"]
)
def test_sizes_without_a_unit_or_with_a_wrong_one_are_refused(text):
    with pytest.raises(InvalidInput, match=r"budgets\.gpu_cap"):
        parse_bytes(text, "budgets.gpu_cap")


def test_gb_and_gib_differ():
    assert parse_bytes("21.55GB") == 21_550_000_000
    assert parse_bytes("21.55GiB") == gib(21.55)
    assert gib(21.55) - 21_550_000_000 > 10**9


def test_rates():
    assert parse_rate("12GB/s") == 12e9
    for text in ("12GB", "0GB/s", "GB/s"):
        with pytest.raises(InvalidInput, match="h2d"):
            parse_rate(text, "h2d")


def test_formats_for_people():
    assert format_bytes(3 * 2**29) == "1.50 GiB"
    assert format_bytes(2**19) == "0.5 MiB"
    assert format_rate(2.83e9) == "2.83 GB/s"


@settings(max_examples=50)
@given(st.integers(min_value=0, max_value=2**40))
def test_whole_bytes_survive(value):
    assert parse_bytes(f"{value}B") == value
