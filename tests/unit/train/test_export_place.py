"""Where an export goes, and weights that no file can stand for."""

from __future__ import annotations

import pytest
import torch
from test_export import origin
from transformers import AutoModelForCausalLM

from lazytrain.errors import InvalidInput
from lazytrain.train.export import export


def test_the_folder_one_stands_in_is_filled_in_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    export(origin(layers=1), tmp_path.relative_to(tmp_path))
    assert tmp_path.stat().st_ino == before
    AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_leads_to_the_folder_and_stays(tmp_path, is_there):
    if is_there:
        (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    export(origin(layers=1), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match=r"^out = .*give another"):
        export(origin(layers=1), tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_weights_that_diverged_or_leave_the_dtype_are_named(tmp_path):
    given = origin(layers=1)
    name = "model.layers.0.mlp.down_proj.weight"
    kept = given.weights[name].clone()
    given.weights[name][0, 0] = float("nan")
    with pytest.raises(InvalidInput, match=r"down_proj.*diverged"):
        export(given, tmp_path / "out")
    given.weights[name].copy_(kept)
    given.weights[name][0, 0] = 1e6
    with pytest.raises(InvalidInput, match=r"down_proj.*--dtype bfloat16"):
        export(given, tmp_path / "out", dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []
