"""Records to make tables from: written by hand, so that every cell is known."""

from pathlib import Path

import pytest

from lazytrain.config import RunRow
from lazytrain.evaluated import EvalRecord
from lazytrain.records import Provenance, RunRecord

PAPER = Path(__file__).parents[3] / "config" / "paper"


@pytest.fixture
def paper():
    return PAPER


def provenance():
    return Provenance(
        commit="c0ffee",
        dirty=False,
        command="lazytrain run",
        started="2026-11-29T00:00:00+00:00",
        hostname_sha256="0" * 64,
        device="H200",
        cpu="a CPU",
        cores=16,
        memory_bytes=2**37,
        versions={},
    )


@pytest.fixture
def make_row():
    def row(system="lazytrain", scale="27B", accelerator="gpu80", **values):
        given = {
            "model": "Qwen3.6-27B",
            "stands_for": "Qwen3.6-27B",
            "batch": 72,
            "seq_len": 1024,
            "table3": True,
            "table5": True,
        }
        return RunRow(
            system=system, scale=scale, accelerator=accelerator, **given | values
        )

    return row


@pytest.fixture
def make_record(make_row):
    def record(system="lazytrain", scale="27B", accelerator="gpu80", **values):
        row = make_row(system, scale, accelerator).model_dump(
            exclude={"table3", "table4", "table5"}
        )
        count = values.get("num_parameters", 26_895_998_464)
        tflops = values.get("tflops", 161.4) or 0.0
        padded = tflops * 1e12 / (6 * count)
        batch = values.get("batch", row["batch"])
        given = {
            "purpose": "throughput",
            "device": "H200",
            "status": "ok",
            "reason": None if values.get("status", "ok") == "ok" else "a reason",
            "num_parameters": count,
            "tokens_per_s": min(1000.0, padded),
            "padded_tokens_per_s": padded,
            "tflops": tflops,
            "step_s": batch * row["seq_len"] / padded if padded else None,
            "master": "fp32-split",
            "optimizer_state": "8bit",
            "gpu_peak_bytes": 68_840_000_000,
            "host_peak_bytes": 361_580_000_000,
            "provenance": provenance(),
        }
        return RunRecord(**row | given | values)

    return record


@pytest.fixture
def make_evaluation():
    def evaluation(system="lazytrain", scale="7B", accelerator="cpu", **values):
        given = {
            "model": "7B-mini",
            "stands_for": "Qwen2.5-7B",
            "device": "a CPU",
            "num_rows": 200,
            "exact_match": 0.5,
            "by_type": {"AnsAug": (100, 200)},
            "before": 0.0,
            "majority_baseline": 0.01,
            "distinct_answers": 150,
            "split_sha256": "1" * 64,
            "provenance": provenance(),
            "predictions": (),
        }
        return EvalRecord(
            system=system, scale=scale, accelerator=accelerator, **given | values
        )

    return evaluation
