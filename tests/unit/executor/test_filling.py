"""Taking host memory says how far it is, and nothing where it is quick."""

import pytest

from lazytrain.executor.filling import Filling
from lazytrain.units import GIB


def test_says_how_far_it_is_every_five_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lines at 6 s and at the end; none at 8 s, two seconds after the first."""
    times = iter([0.0, 3.0, 6.0, 8.0, 9.0])
    filling = Filling(32 * GIB, clock=lambda: next(times))
    for _ in range(4):
        filling.add(8 * GIB)
    assert capsys.readouterr().err.splitlines() == [
        "host memory: 16.00 GiB of 32.00 GiB ready after 6 s",
        "host memory: 32.00 GiB of 32.00 GiB ready after 9 s",
    ]


def test_a_quick_one_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Four seconds in all: not a line, not even a last one."""
    times = iter([0.0, 2.0, 4.0])
    filling = Filling(16 * GIB, clock=lambda: next(times))
    filling.add(8 * GIB)
    filling.add(8 * GIB)
    assert capsys.readouterr().err == ""
