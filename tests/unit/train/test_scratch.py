"""A run whose plan uses NVMe: the tier is made as configured, recorded, and removed."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
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

    def make(plan, out="out", run=(), **settings):
        path = tmp_path / f"{out}.plan.json"
        write(plan, path)
        plain = request(tmp_path, tmp_path / out, plan=path, **dict(run))
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


def with_state(plan, home):
    """Return the plan with all optimizer state in one home."""

    def moved(part):
        state = part.optimizer_state.model_copy(update={"home": home})
        return part.model_copy(update={"optimizer_state": state})

    return plan.model_copy(update={"parts": tuple(map(moved, plan.parts))})


def test_a_run_goes_on_where_its_state_lives_elsewhere(asked, tmp_path):
    """Two steps with state on disk equal one there and one in memory, both ways."""
    ends = {}
    for first, second in (("cpu", "cpu"), ("nvme", "cpu"), ("cpu", "nvme")):
        name = f"{first}-{second}"
        made = plan(homes("G"))
        run = {"purpose": "quality", "save_every": 1}
        whole = run_row(asked(with_state(made, first), name, run))
        assert bool(whole.nvme) == (first == "nvme")
        saved = tmp_path / name / "checkpoints" / "step-000001"
        run = {"purpose": "quality", "resume": str(saved)}
        rest = run_row(asked(with_state(made, second), f"{name}-rest", run))
        assert bool(rest.nvme) == (second == "nvme")
        assert rest.num_steps == 2
        for out in (name, f"{name}-rest"):
            ends[out] = load_file(tmp_path / out / "weights" / "model.safetensors")
    expected = ends["cpu-cpu"]
    for out, weights in ends.items():
        for key, tensor in expected.items():
            assert torch.equal(weights[key], tensor), (out, key)
    assert list((tmp_path / "scratch").iterdir()) == []
