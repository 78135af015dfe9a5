"""The comparison of losses: what it calls agreement, on real runs of a small model."""

import json
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import loss_agreement
        import loss_agreement_run

        yield loss_agreement, loss_agreement_run
    finally:
        sys.path.remove(str(BENCHMARKS))


def kept_record(machine):
    return BENCHMARKS.parent / "results" / "recorded" / machine / "loss_agreement.json"


@pytest.fixture(scope="module")
def args(scripts):
    words = "--scale mini --layers 2 --batch 16 --seq-len 32 --steps 3 --device cpu"
    return scripts[1].parse([*words.split(), "--learning-rate", "1e-3"])


@pytest.fixture(scope="module")
def reference(scripts, args):
    _, run = scripts
    return [run.run_reference(args, size)["losses"] for size in (4, 16)]


def test_the_reference_differs_by_rounding_alone(reference):
    small, large = reference
    assert small == pytest.approx(large, rel=1e-5)
    assert small[-1] < small[0]


@pytest.mark.parametrize("system", ["lazytrain-no-hybrid8bit", "megatrain-milp"])
def test_a_system_is_measured_from_the_references_mean(
    scripts, args, reference, system
):
    agreement, run = scripts
    found = agreement.judged(reference, run.run_system(args, system))
    assert found["required"]
    assert found["difference"] < 1e-4
    assert found["losses"] == pytest.approx(reference[0], rel=1e-5)


def test_what_8_bit_moments_do_is_the_formats_doing(scripts, args, reference):
    """Plain autograd with such moments strays as far, and the system keeps to it."""
    agreement, run = scripts
    own = run.run_reference_8bit(args, 16)["losses"]
    found = agreement.judged(reference, run.run_system(args, "lazytrain-8bit"), own)
    assert found["optimizer_state"] == "8bit"
    assert max(abs(a - b) for a, b in zip(own, reference[1], strict=True)) > 1e-5
    assert found["difference_from_8bit"] < found["difference"] / 10
    hybrid = agreement.judged(reference, run.run_system(args, "lazytrain"), own)
    assert "difference_from_8bit" not in hybrid


def test_a_wrong_loss_does_not_agree_and_a_bf16_master_need_not(scripts):
    agreement, _ = scripts
    reference = [[3.0, 2.0], [3.1, 2.1]]
    found = {"losses": [3.05, 2.4], "master": "fp32"}
    judged = agreement.judged(reference, found)
    assert judged["difference"] == pytest.approx(0.35)
    assert not judged["agrees"]
    assert judged["required"]
    assert agreement.judged(reference, found | {"losses": [3.05, 2.3]})["agrees"]
    assert not agreement.judged(reference, found | {"master": "bf16"})["required"]
    assert agreement.judged(reference, {"failed": "x"}) == {"failed": "x"}


def test_8_bit_moments_are_held_to_plain_autograd_with_such(scripts):
    agreement, _ = scripts
    reference, with_8bit = [[3.0, 2.0], [3.1, 2.1]], [3.05, 1.0]
    found = {"losses": [3.05, 1.2], "master": "fp32", "optimizer_state": "8bit"}
    verdict = agreement.judged(reference, found, with_8bit)
    assert verdict["times_spread"] == pytest.approx(8.5)
    assert verdict["times_spread_from_8bit"] == pytest.approx(2.0)
    assert verdict["agrees"]
    # One that strays from both, and one that nothing of its format was run for.
    wrong = found | {"losses": [3.05, 1.4]}
    assert not agreement.judged(reference, wrong, with_8bit)["agrees"]
    assert not agreement.judged(reference, found)["agrees"]
    # Two hundredths in 8 bits do not excuse a distance from the fp32 moments.
    hybrid = found | {"optimizer_state": "hybrid-0.02"}
    assert not agreement.judged(reference, hybrid, with_8bit)["agrees"]


@pytest.mark.parametrize("machine", ["cpu", "h200"])
def test_a_record_s_verdicts_are_those_of_its_losses(scripts, machine):
    agreement, _ = scripts
    record = json.loads(kept_record(machine).read_text())
    assert agreement.judged_again(record) == record
    required = [v for v in record["systems"].values() if v.get("required")]
    assert required
    assert all(found["agrees"] for found in required)


def test_five_micro_batch_sizes_or_none(scripts):
    agreement, _ = scripts
    assert agreement.micro_batches(16) == [1, 2, 4, 8, 16]
    assert agreement.micro_batches(48) == [8, 12, 16, 24, 48]
    with pytest.raises(SystemExit, match="fewer than 5"):
        agreement.micro_batches(8)


@pytest.mark.parametrize("machine", ["cpu", "h200"])
def test_the_figure_beside_a_record_is_drawn_from_it(scripts, tmp_path, machine):
    agreement, _ = scripts
    kept = kept_record(machine)
    record = json.loads(kept.read_text())
    agreement.draw(record, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert "plain autograd, 8-bit moments" in drawn
    shown = [name for name, found in record["systems"].items() if "losses" in found]
    texts = re.findall(r">([^<>]+)</text>", drawn)
    texts += re.findall(r">([^<>]+)</text>", kept.with_suffix(".svg").read_text())
    for name in shown:
        assert sum(text.startswith(f"{name} (") for text in texts) == 2
