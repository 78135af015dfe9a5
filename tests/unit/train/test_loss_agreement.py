"""The comparison of losses on real runs of a small model."""

from __future__ import annotations

import pytest
from benchmark_scripts import benchmark_modules

MODULES = ("loss_agreement", "loss_agreement_run", "loss_agreement_verdict")


@pytest.fixture(scope="module")
def scripts():
    """The script, the one of a single run, and what calls their losses agreement."""
    return benchmark_modules(*MODULES)


@pytest.fixture(scope="module")
def args(scripts):
    words = "--scale mini --layers 2 --batch 16 --seq-len 32 --steps 3 --device cpu"
    return scripts[1].parse([*words.split(), "--learning-rate", "1e-3"])


@pytest.fixture(scope="module")
def reference(scripts, args):
    return [scripts[1].run_reference(args, size)["losses"] for size in (4, 16)]


def test_the_reference_differs_by_rounding_alone(reference):
    small, large = reference
    assert small == pytest.approx(large, rel=1e-5)
    assert small[-1] < small[0]


@pytest.mark.parametrize("system", ["lazytrain-no-hybrid8bit", "megatrain-milp"])
def test_a_system_is_measured_from_the_references_mean(
    scripts, args, reference, system
):
    _, run, verdict = scripts
    found = verdict.judged(reference, run.run_system(args, system))
    assert found["required"]
    assert found["difference"] < 1e-4
    assert found["losses"] == pytest.approx(reference[0], rel=1e-5)


def test_what_8_bit_moments_do_is_the_formats_doing(scripts, args, reference):
    """Plain autograd with such moments strays as far, and the system keeps to it."""
    _, run, verdict = scripts
    own = run.run_reference_8bit(args, 16)["losses"]
    found = verdict.judged(reference, run.run_system(args, "lazytrain-8bit"), own)
    assert found["optimizer_state"] == "8bit"
    assert max(abs(a - b) for a, b in zip(own, reference[1], strict=True)) > 1e-5
    assert found["difference_from_8bit"] < found["difference"] / 10
    hybrid = verdict.judged(reference, run.run_system(args, "lazytrain"), own)
    assert "difference_from_8bit" not in hybrid


def test_five_micro_batch_sizes_or_none(scripts):
    sizes = scripts[0].micro_batches
    assert sizes(16) == [1, 2, 4, 8, 16]
    assert sizes(48) == [8, 12, 16, 24, 48]
    with pytest.raises(SystemExit, match="fewer than 5"):
        sizes(8)


def test_a_reference_without_finite_losses_ends_it(scripts):
    losses = scripts[0].reference_losses
    assert losses({"losses": [3.0, 2.0]}) == [3.0, 2.0]
    for broken in ({"failed": "over 9 s"}, {"losses": [3.0, float("nan")]}):
        with pytest.raises(SystemExit, match="the reference failed"):
            losses(broken)
