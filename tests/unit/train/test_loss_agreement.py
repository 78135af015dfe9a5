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
    assert agreement.distance(own, reference[1]) > 1e-5
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


def test_five_micro_batch_sizes_or_none(scripts):
    agreement, _ = scripts
    assert agreement.micro_batches(16) == [1, 2, 4, 8, 16]
    assert agreement.micro_batches(48) == [8, 12, 16, 24, 48]
    with pytest.raises(SystemExit, match="fewer than 5"):
        agreement.micro_batches(8)


@pytest.mark.parametrize("machine", ["cpu", "h200"])
def test_the_figure_beside_a_record_is_drawn_from_it(scripts, tmp_path, machine):
    """Also that of a record without the reference with 8-bit moments."""
    agreement, _ = scripts
    kept = BENCHMARKS.parent / "results" / "recorded" / machine / "loss_agreement.json"
    record = json.loads(kept.read_text())
    agreement.draw(record, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert ("plain autograd, 8-bit moments" in drawn) == ("reference_8bit" in record)
    shown = [name for name, found in record["systems"].items() if "losses" in found]
    texts = re.findall(r">([^<>]+)</text>", drawn)
    texts += re.findall(r">([^<>]+)</text>", kept.with_suffix(".svg").read_text())
    for name in shown:
        assert sum(text.startswith(f"{name} (") for text in texts) == 2
