"""Weights on disk are read lazily, whole or not at all."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from lazytrain.errors import InvalidInput
from lazytrain.models.load import INDEX, SINGLE, SafetensorsFiles, safetensors_folder

EMBEDDING = "model.embed_tokens.weight"


def sharded(folder, names=(EMBEDDING, "model.norm.weight", "lm_head.weight")):
    files = {}
    for number, name in enumerate(names):
        file = f"model-{number}.safetensors"
        save_file({name: torch.full((4, 3), float(number))}, folder / file)
        files[name] = file
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return files


def test_shards_are_opened_only_when_asked_for(tmp_path, monkeypatch):
    sharded(tmp_path)
    weights = safetensors_folder(tmp_path)
    assert len(weights) == 3
    assert "lm_head.weight" in weights
    opened = []
    handle = SafetensorsFiles._handle

    def watched(self, file):
        opened.append(file)
        return handle(self, file)

    monkeypatch.setattr(SafetensorsFiles, "_handle", watched)
    assert weights["model.norm.weight"].tolist()[0] == [1.0] * 3
    # Its shape and then its values are asked for: one read.
    assert weights["model.norm.weight"].shape == (4, 3)
    assert opened == ["model-1.safetensors"]


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path):
    files = sharded(tmp_path)
    (tmp_path / files["lm_head.weight"]).unlink()
    with pytest.raises(InvalidInput, match=r"model-2\.safetensors"):
        safetensors_folder(tmp_path)


def test_a_shard_cut_short_is_an_error_that_names_it(tmp_path):
    files = sharded(tmp_path)
    path = tmp_path / files["model.norm.weight"]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InvalidInput, match=r"model-1\.safetensors"):
        _ = safetensors_folder(tmp_path)["model.norm.weight"]


def test_a_single_file_cut_short_and_a_broken_index_are_errors(tmp_path):
    save_file({EMBEDDING: torch.zeros(9)}, tmp_path / SINGLE)
    assert safetensors_folder(tmp_path)[EMBEDDING].shape == (9,)
    (tmp_path / SINGLE).write_bytes(b"\x08\0\0")
    with pytest.raises(InvalidInput, match="no whole safetensors"):
        safetensors_folder(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(InvalidInput, match="no index"):
        safetensors_folder(tmp_path)


def test_an_empty_folder_says_what_is_looked_for(tmp_path):
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        safetensors_folder(tmp_path)


def test_a_text_model_inside_a_larger_one_is_found(tmp_path):
    names = (
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.0.mlp.up_proj.weight",
        "model.visual.patch.weight",
        "lm_head.weight",
    )
    sharded(tmp_path, names)
    weights = safetensors_folder(tmp_path)
    assert weights[EMBEDDING][0, 0] == 0
    assert weights["model.layers.0.mlp.up_proj.weight"][0, 0] == 1
    assert weights["lm_head.weight"][0, 0] == 3
