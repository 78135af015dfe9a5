"""The real trial, cut to twenty steps on a CPU: SmolLM2 learns to end in an answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmark_scripts import benchmark_modules
from smollm2 import gguf_or_skip

from lazytrain.config import PipelineConfig, load_runs, load_yaml
from lazytrain.evaluated import EvalRecord, EvaluationPoint
from lazytrain.records import RunRecord, read, read_lines

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config" / "trial.yaml"
(gsm8k_trial,) = benchmark_modules("gsm8k_trial")


def worded(number: int) -> dict[str, str]:
    """Return a question in GSM8K's shape, with its number of apples."""
    return {
        "question": f"Ann has {number} apples and buys {number + 1}. How many now?",
        "answer": f"Ann has {number}+{number + 1}={2 * number + 1}.\n"
        f"#### {2 * number + 1}",
    }


@pytest.fixture
def data(tmp_path):
    for name, numbers in (("train", range(2, 90)), ("test", range(90, 98))):
        lines = "".join(json.dumps(worded(number)) + "\n" for number in numbers)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    return tmp_path


def test_the_trial_s_sheet_has_the_paper_s_systems_with_one_protocol():
    config = load_yaml(PipelineConfig, CONFIG)
    rows = load_runs(ROOT / config.runs)
    real = [row for row in rows if row.accelerator == "h200"]
    paper = {"zero3-offload", "zero-infinity", "megatrain", "lazytrain"}
    assert paper <= {row.system for row in real}
    assert len({(row.batch, row.seq_len, row.model) for row in real}) == 1
    quality = config.accelerators["h200"].quality
    # 7,473 rows, three epochs.
    assert quality.num_steps == 3 * 7473 // real[0].batch
    assert quality.exact_match.every_epochs == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("system", ["lazytrain", "megatrain"])
def test_twenty_steps_of_the_trial_learn_the_form_of_an_answer(
    data, tmp_path, monkeypatch, system
):
    weights = gguf_or_skip()
    out = tmp_path / "out"
    options = {
        "--system": system,
        "--weights": weights,
        "--data": data,
        "--out": out,
        "--config": CONFIG,
        "--accelerator": "cpu",
        "--steps": 20,
        "--batch": 2,
        "--answers": 8,
        "--max-new-tokens": 40,
        "--every-epochs": 0.2,
    }
    words = [str(word) for pair in options.items() for word in pair]
    monkeypatch.setattr(sys, "argv", ["gsm8k_trial.py", *words])
    monkeypatch.chdir(ROOT)
    found = gsm8k_trial.run(gsm8k_trial.arguments())
    record = read(RunRecord, out / system / "record.json")
    assert (record.status, record.num_steps) == ("ok", 20)
    assert record.num_parameters == 134_515_008
    assert found["last_loss"] < 0.5 * found["first_loss"]
    evaluation = read(EvalRecord, out / system / "eval.json")
    assert evaluation.before == 0.0
    # Twenty steps teach where the answer stands, if not yet arithmetic.
    marked = [p for p in evaluation.predictions if p.answer is not None]
    assert len(marked) >= 6
    points = read_lines(EvaluationPoint, out / system / "evaluations.jsonl")
    assert [(point.step, point.rows) for point in points] == [
        (0, "sample"),
        (9, "sample"),
        (18, "sample"),
        (20, "full"),
    ]
