"""Weights that are not the configuration's are named, and never used."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from streaming import small_config

from lazytrain.baselines.initial import build_model
from lazytrain.data.prompts import load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.evaluate.initial import load_model
from lazytrain.models.decoder import Decoder
from lazytrain.models.given import GivenWeights
from lazytrain.models.load import SINGLE
from lazytrain.train.export import export, find_origin
from lazytrain.train.source import load_source
from lazytrain.train.weights_io import save_pretrained

CPU = torch.device("cpu")
UP = "model.layers.1.mlp.up_proj.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def folder_of(folder, name="7B-mini"):
    """Write a model folder; 3B-mini ties its head, 7B-mini does not."""
    config = small_config(name, 2)
    model = build_model(config, 1, torch.float32, CPU)
    tokenizer = load_tokenizer("random", config.vocab_size)
    save_pretrained(folder, model.named_parameters(), config, tokenizer)
    return folder


def edited(folder, edit):
    weights = load_file(folder / SINGLE)
    edit(weights)
    save_file(weights, folder / SINGLE, {"format": "pt"})


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def renamed(weights):
    weights["model.layers.1.mlp.upp.weight"] = weights.pop(UP)


def with_scale(weights):
    weights[UP] = weights[UP].to(torch.float8_e4m3fn)
    weights[f"{UP}_scale_inv"] = torch.full((1, 1), 7.0)


FAULTS = {
    "missing": (lambda weights: weights.pop(UP), "up_proj.*missing"),
    "renamed": (renamed, "up_proj.*missing"),
    "no head": (lambda weights: weights.pop(HEAD), "lm_head.*missing"),
    "turned": (lambda w: w.update({UP: w[UP].T.contiguous()}), "expected"),
    "fp8": (with_scale, "dequantise"),
    "int8": (lambda w: w.update({UP: w[UP].to(torch.int8)}), "dequantise"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_unfit_weights_are_refused_where_they_are_read(tmp_path, fault):
    edit, reason = FAULTS[fault]
    folder = folder_of(tmp_path / "model")
    edited(folder, edit)
    with pytest.raises(InvalidInput, match=reason):
        dict(load_source(str(folder), None).state_dict or {})
    with pytest.raises(InvalidInput, match=reason):
        export(find_origin(folder), tmp_path / "out")
    with pytest.raises(InvalidInput, match=reason):
        load_model(folder, CPU, "always")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("fault", ["missing", "renamed", "turned"])
def test_no_answer_is_given_with_weights_drawn_at_random(tmp_path, fault):
    folder = folder_of(tmp_path / "model")
    edited(folder, FAULTS[fault][0])
    with pytest.raises(InvalidInput, match=r"up_proj.*missing or of another shape"):
        load_model(folder, CPU)


def test_a_file_cut_short_is_named_by_an_evaluation(tmp_path):
    folder = folder_of(tmp_path / "model")
    whole = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(whole[: len(whole) // 2])
    for stream in ("never", "always"):
        with pytest.raises(InvalidInput, match="weights"):
            load_model(folder, CPU, stream)


def test_quantised_weights_are_refused_by_their_method(tmp_path):
    folder = folder_of(tmp_path / "model")
    configured(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(InvalidInput, match=r"quantised by fp8.*dequantise"):
        load_source(str(folder), None)


def test_a_tie_that_the_files_contradict_is_refused(tmp_path):
    folder = folder_of(tmp_path / "model", "3B-mini")
    edited(folder, lambda w: w.update({HEAD: w[EMBEDDING].clone()}))
    assert HEAD not in (load_source(str(folder), None).state_dict or {})
    edited(folder, lambda w: w.update({HEAD: -w[EMBEDDING]}))
    with pytest.raises(InvalidInput, match="tie_word_embeddings: false"):
        load_source(str(folder), None)
    configured(folder, tie_word_embeddings=False)
    kept = load_source(str(folder), None).state_dict or {}
    assert torch.equal(kept[HEAD], -kept[EMBEDDING])


def test_weights_without_a_use_are_told_once(tmp_path, caplog):
    folder = folder_of(tmp_path / "model")
    bias = "model.layers.1.mlp.up_proj.bias"
    derived = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edited(folder, lambda w: w.update({bias: torch.ones(3), derived: torch.ones(8)}))
    with caplog.at_level(logging.WARNING):
        export(find_origin(folder), tmp_path / "out")
    told = [message for message in caplog.messages if "without a use" in message]
    assert len(told) == 1
    assert f"{bias} (1 in all)" in told[0]


def test_a_mapping_has_the_models_names_and_no_others():
    decoder = Decoder(small_config("7B-mini", 2))
    names = [part.prefix + name for part in decoder.parts for name in part.tensors]
    shapes = [shape for part in decoder.parts for shape in part.tensors.values()]
    made = dict(zip(names, map(torch.zeros, shapes), strict=True))
    given = GivenWeights(decoder, made | {"other": torch.zeros(1)})
    assert list(given) == names
    assert "other" not in given
    assert len(given) == len(names)


def strange(folder):
    (folder / "code.py").write_text("raise SystemExit('the code was run')\n")
    classes = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    configured(folder, model_type="strange", auto_map=classes)


def strange_tokenizer(folder):
    path = folder / "tokenizer_config.json"
    changes = {"auto_map": {"AutoTokenizer": ["code.T", None]}, "tokenizer_class": "T"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def adapter(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")


def spoilt_generation(folder):
    (folder / "generation_config.json").write_text("{")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (strange, "custom code|trust_remote_code"),
        (adapter, r"adapter \(LoRA\); merge it"),
        (spoilt_generation, "generation_config.*not a valid JSON"),
    ],
)
def test_a_folder_of_another_kind_is_named_and_its_code_not_run(
    tmp_path, monkeypatch, edit, reason
):
    def asked(*_arguments):
        pytest.fail("the user was asked whether to run the model's code")

    monkeypatch.setattr("builtins.input", asked)
    folder = folder_of(tmp_path / "model")
    edit(folder)
    with pytest.raises(InvalidInput, match=reason):
        load_source(str(folder), None)
    with pytest.raises(InvalidInput, match=reason):
        find_origin(folder)
    for stream in ("never", "always"):
        with pytest.raises(InvalidInput, match=reason):
            load_model(folder, CPU, stream)


def test_a_tokenizer_is_read_from_its_file_and_not_from_code(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_arguments: pytest.fail("asked"))
    folder = folder_of(tmp_path / "model")
    strange_tokenizer(folder)
    assert load_tokenizer(str(folder), 384)("a")["input_ids"] == [97]
