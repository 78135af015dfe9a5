"""A run that ended without a model still has an evaluation record, with its reason."""

import pytest

from lazytrain.config import SyntheticSettings
from lazytrain.data.metamath import load_rows
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.evaluate.run import Request, run_evaluation
from lazytrain.provenance import collect
from lazytrain.records import RunRecord, write


@pytest.mark.parametrize("status", ["not_run", "oom", "host_oom", "diverged"])
def test_the_reason_is_passed_on_and_nothing_is_answered(tmp_path, status):
    loaded = load_rows("synthetic", SyntheticSettings(num_questions=20))
    write_rows(loaded.rows, tmp_path / "rows.jsonl")
    manifest = split_rows(loaded.rows, SplitSettings(), source="synthetic")
    write(manifest, tmp_path / "split.json")
    run = RunRecord(
        system="zero3-offload",
        scale="7B",
        model="7B-mini",
        stands_for="Qwen2.5-7B",
        accelerator="cpu",
        batch=8,
        seq_len=256,
        purpose="quality",
        device="a CPU",
        status=status,
        reason="no C++ compiler: install g++",
        provenance=collect("cpu"),
    )
    write(run, tmp_path / "record.json")
    request = Request(weights=tmp_path / "weights", split=tmp_path / "split.json")
    record = run_evaluation(request)
    assert (record.status, record.reason) == (status, run.reason)
    assert (record.num_rows, record.predictions) == (0, ())
    assert record.split_sha256 == manifest.test.sha256
