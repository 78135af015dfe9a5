"""A run whose plan uses NVMe: the tier is made as configured, recorded, and removed."""

from __future__ import annotations

import pytest
from streaming import plan_for, small_config
from test_run import request

from lazytrain.config import NvmeSettings, PipelineConfig
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.data.synthetic import generate
from lazytrain.errors import InvalidInput
from lazytrain.records import write
from lazytrain.train.run import run_row


@pytest.fixture
def asked(tmp_path):
    """Return a function that makes the request of a run on a plan."""
    rows = generate(40, 0)
    write_rows(rows, tmp_path / "rows.jsonl")
    manifest = split_rows(rows, SplitSettings("grouped", 0, 0.7), source="synthetic")
    write(manifest, tmp_path / "split.json")

    def make(plan, **settings):
        write(plan, tmp_path / "plan.json")
        plain = request(tmp_path, tmp_path / "out", plan=tmp_path / "plan.json")
        values = plain.config.model_dump() | {
            "scratch": str(tmp_path / "scratch"),
            "nvme": NvmeSettings(**settings).model_dump(),
        }
        row = plain.row.model_copy(update={"system": "lazytrain"})
        config = PipelineConfig.model_validate(values)
        return plain.model_copy(update={"row": row, "config": config})

    return make


def plan(homes):
    """Return a plan of the whole stand-in over G, C, N, R."""
    config = small_config("3B-mini")
    size = 2 * 256 * config.hidden_size * 4
    made = plan_for(config, homes, batch=2, seq_len=256, micro_batch=1)
    boundaries = [b.model_copy(update={"size_bytes": size}) for b in made.boundaries]
    return made.model_copy(update={"boundaries": tuple(boundaries)})


def homes(letter):
    """Return homes that keep all but the first two boundaries on the device."""
    return letter * 2 + "G" * (small_config("3B-mini").num_hidden_layers - 1)


@pytest.mark.parametrize("verify", [True, False])
def test_the_record_says_how_the_tier_worked(asked, tmp_path, verify):
    record = run_row(asked(plan(homes("N")), verify=verify, threads=2))
    assert record.status == "ok"
    assert record.nvme["backend"] == "posix"
    assert record.nvme["threads"] == 2
    assert record.nvme["verify"] is verify
    assert record.nvme["direct"] in (True, False)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_run_without_nvme_has_no_tier(asked, tmp_path):
    record = run_row(asked(plan(homes("C"))))
    assert record.nvme == {}
    assert not (tmp_path / "scratch").exists()


def test_a_backend_that_is_not_there_is_refused(asked):
    with pytest.raises(InvalidInput, match="gds"):
        run_row(asked(plan(homes("N")), backend="gds"))
