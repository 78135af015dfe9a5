"""Sheet ids: what `auto` picks, and that an absent accelerator is an error."""

from __future__ import annotations

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.profile import accelerator
from lazytrain.provenance import Gpu

GIB = 2**30
H200 = Gpu("NVIDIA H200", "GPU-1", 140 * GIB)
A100 = Gpu("NVIDIA A100-SXM4-80GB", "GPU-2", 79 * GIB)
RTX3090 = Gpu("NVIDIA GeForce RTX 3090", "GPU-3", 24 * GIB)
LAPTOP = Gpu("NVIDIA T500", "GPU-4", 4 * GIB)


@pytest.fixture
def machine(monkeypatch):
    def use(gpu):
        monkeypatch.setattr(accelerator, "first_gpu", lambda: gpu)

    return use


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (None, "cpu"),
        (LAPTOP, "cpu"),
        (RTX3090, "gpu24"),
        (A100, "gpu80"),
        (H200, "gpu80"),
    ],
)
def test_auto_picks_the_class(machine, gpu, expected):
    machine(gpu)
    assert accelerator.resolve_accelerator("auto") == expected


@pytest.mark.parametrize(
    ("gpu", "asked"),
    [
        (None, "cpu"),
        (H200, "cpu"),
        (H200, "h200"),
        (H200, "h200-cap70"),
        (H200, "h200-cap24"),
        (RTX3090, "rtx3090"),
        (A100, "gpu80"),
    ],
)
def test_what_is_here_is_taken_as_asked(machine, gpu, asked):
    machine(gpu)
    assert accelerator.resolve_accelerator(asked) == asked


@pytest.mark.parametrize(
    ("gpu", "asked"),
    [
        (None, "gpu24"),
        (None, "h200"),
        (A100, "h200"),
        (H200, "gpu24"),
        (RTX3090, "gpu80"),
        (H200, "h200-cap200"),
        (None, "cpu-cap8"),
        (H200, "GPU80"),
        (H200, ""),
    ],
)
def test_what_is_not_here_is_an_error(machine, gpu, asked):
    machine(gpu)
    with pytest.raises(InvalidInput, match="accelerator"):
        accelerator.resolve_accelerator(asked)


def test_caps_and_kinds_are_read_from_the_id():
    assert accelerator.cap_bytes("h200-cap70") == 70 * GIB
    assert accelerator.cap_bytes("h200") is None
    assert accelerator.is_gpu("h200-cap70")
    assert not accelerator.is_gpu("cpu")


def test_the_choice_says_why_and_how_to_change_it(machine):
    machine(None)
    line = accelerator.describe_choice("auto", "cpu")
    assert "no NVIDIA GPU" in line
    assert "--config accelerator=" in line
