"""What the comparison of losses calls agreement, and its records judged again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from benchmark_scripts import BENCHMARKS, benchmark_modules
from matplotlib.axes import Axes

RECORDED = BENCHMARKS.parent / "results" / "recorded"
MODULES = ("loss_agreement", "loss_agreement_verdict", "loss_agreement_figure")
REFERENCE = [[3.0, 2.0], [3.1, 2.1]]
FORMATS = {"master": "fp32", "optimizer_state": "fp32"}


@pytest.fixture(scope="module")
def scripts():
    """The script, what it calls agreement, and what draws it."""
    return benchmark_modules(*MODULES)


@pytest.fixture
def judged(scripts):
    def verdict(*losses, master="fp32", state="fp32", with_8bit=None, of=REFERENCE):
        found = {"losses": [*losses], "master": master, "optimizer_state": state}
        return scripts[1].judged(of, found, with_8bit)

    return verdict


def kept(machine: str) -> Path:
    return RECORDED / machine / "loss_agreement.json"


def test_three_spreads_are_allowed_and_no_more(judged):
    far = judged(3.05, 2.4)
    assert far["difference"] == pytest.approx(0.35)
    assert far["times_spread"] == pytest.approx(3.5)
    assert not far["agrees"]
    assert judged(3.05, 2.34)["agrees"]
    assert judged(3.05, 1.76)["agrees"]


def test_masters_of_16_bits_need_not_agree(judged, scripts):
    assert judged(3.05, 2.05, master="fp32-split")["required"]
    assert not judged(3.05, 2.05, master="bf16")["required"]
    assert not judged(3.05, 2.05, master="bf16-stochastic")["required"]
    failed = {"failed": "x"}
    assert scripts[1].judged(REFERENCE, failed) == failed


def test_8_bit_moments_are_held_to_plain_autograd_with_such(judged):
    own = {"state": "8bit", "with_8bit": [3.05, 1.0]}
    verdict = judged(3.05, 1.2, **own)
    assert verdict["times_spread"] == pytest.approx(8.5)
    assert verdict["times_spread_from_8bit"] == pytest.approx(2.0)
    assert verdict["agrees"]
    # One that is far from its own reference, one of these near that of fp32.
    assert not judged(3.05, 1.4, **own)["agrees"]
    assert not judged(3.05, 2.05, **own)["agrees"]
    # Nothing of its format was run; and two hundredths in 8 bits are no excuse.
    assert not judged(3.05, 1.2, state="8bit")["agrees"]
    hybrid = judged(3.05, 1.2, state="hybrid-0.02", with_8bit=[3.05, 1.0])
    assert not hybrid["agrees"]
    assert "difference_from_8bit" not in hybrid


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_loss_that_is_not_finite_agrees_with_nothing(judged, lost, place):
    losses = [3.05, 2.05]
    losses[place] = lost
    verdict = judged(*losses)
    assert not verdict["agrees"]
    assert verdict["difference"] is None
    assert verdict["times_spread"] is None


def test_without_a_spread_only_equal_losses_agree(judged):
    same = [[3.0, 2.0], [3.0, 2.0]]
    assert judged(3.0, 2.0, of=same)["agrees"]
    verdict = judged(3.0, 2.5, of=same)
    assert (verdict["agrees"], verdict["difference"]) == (False, 0.5)
    assert verdict["times_spread"] is None


@pytest.mark.parametrize("machine", ["cpu", "h200"])
def test_a_record_s_verdicts_are_those_of_its_losses(scripts, machine):
    record = json.loads(kept(machine).read_text())
    assert scripts[1].judged_again(record) == record
    required = [v for v in record["systems"].values() if v.get("required")]
    assert required
    assert all(found["agrees"] for found in required)


def run_on(script, monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["loss_agreement.py", *map(str, words)])
    script.main()
    return json.loads(capsys.readouterr().out)


def test_a_record_with_false_verdicts_is_set_right_in_its_place(
    scripts, tmp_path, monkeypatch, capsys
):
    record = json.loads(kept("cpu").read_text())
    false = json.loads(kept("cpu").read_text()) | {"spread": 1.0, "factor": 9.0}
    for found in false["systems"].values():
        if "losses" in found:
            found |= {"agrees": not found["agrees"], "times_spread": 0.0}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(false))
    told = run_on(scripts[0], monkeypatch, capsys, "--record", path)
    assert told.pop("judged_by")
    record.pop("judged_by", None)
    assert told == record
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.json", "other.svg"]
    # Once more changes nothing, and elsewhere it gets its usual name.
    before = path.read_bytes()
    run_on(scripts[0], monkeypatch, capsys, "--record", path)
    assert path.read_bytes() == before
    out = tmp_path / "out"
    run_on(scripts[0], monkeypatch, capsys, "--record", path, "--out", out)
    assert (out / "loss_agreement.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference": {}}, "reference"),
        ({"reference": {"1": [3.0, float("nan")]}}, "reference"),
        ({"reference": {"1": [3.0], "2": [3.0, 2.0]}}, "fewer steps"),
        ({"reference": {"1": ["3.0"]}}, "reference"),
        ({"reference_8bit": []}, "reference_8bit"),
        ({"systems": [1]}, "systems"),
        ({"systems": {"a": 1}}, "systems"),
        *(
            ({"systems": {"a": {"losses": losses} | FORMATS}}, "losses")
            for losses in ([], None, 3.0, {}, ["3.0"], [None])
        ),
        ({"systems": {"a": {"losses": [3.0]}}}, "need master"),
    ],
    ids=str,
)
def test_what_is_no_such_record_is_refused(
    scripts, tmp_path, monkeypatch, capsys, change, said
):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads(kept("cpu").read_text()) | change))
    before = path.read_bytes()
    with pytest.raises(SystemExit, match=said):
        run_on(scripts[0], monkeypatch, capsys, "--record", path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", [None, "{", "[]"])
@pytest.mark.parametrize("name", ["r.json", "r.svg"])
def test_a_file_that_is_none_is_named(
    scripts, tmp_path, monkeypatch, capsys, text, name
):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(str(path))):
        run_on(scripts[0], monkeypatch, capsys, "--record", path)


@pytest.mark.parametrize("machine", ["cpu", "h200"])
def test_the_figure_beside_a_record_is_drawn_from_it(scripts, tmp_path, machine):
    record = json.loads(kept(machine).read_text())
    scripts[2].draw(record, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert "plain autograd, 8-bit moments" in drawn
    shown = [name for name, found in record["systems"].items() if "losses" in found]
    texts = re.findall(r">([^<>]+)</text>", drawn)
    texts += re.findall(
        r">([^<>]+)</text>", kept(machine).with_suffix(".svg").read_text()
    )
    for name in shown:
        assert sum(text.startswith(f"{name} (") for text in texts) == 2


def test_a_curve_is_the_distance_from_what_a_row_is_held_to(
    scripts, tmp_path, monkeypatch
):
    seen = {}
    monkeypatch.setattr(
        scripts[2], "finish", lambda _, gaps, limit: seen.update(axes=gaps, limit=limit)
    )
    record = json.loads(kept("h200").read_text())
    scripts[2].draw(record, tmp_path / "drawn.svg")
    axes: Axes = seen["axes"]
    assert seen["limit"] == pytest.approx(3 * record["spread"])
    highest = {
        str(line.get_label()).split(" (")[0]: max(line.get_ydata())
        for line in axes.lines
    }
    for name, found in record["systems"].items():
        own = found.get("difference_from_8bit", found["difference"])
        assert highest[name] == pytest.approx(own)
    format_s = record["reference_8bit_times_spread"] * record["spread"]
    assert highest["plain autograd, 8-bit moments"] == pytest.approx(format_s)
