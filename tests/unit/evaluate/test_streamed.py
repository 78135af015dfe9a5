"""Streamed generation writes what the whole model writes."""

from __future__ import annotations

import pytest
import torch
from streaming import small_config
from transformers import AutoModelForCausalLM

from lazytrain.data.prompts import load_tokenizer
from lazytrain.data.synthetic import generate as rows_of
from lazytrain.errors import InvalidInput
from lazytrain.evaluate import initial
from lazytrain.evaluate.generate import generate
from lazytrain.evaluate.initial import initial_model, load_model
from lazytrain.evaluate.streamed import streamed_model
from lazytrain.train.weights_io import save_pretrained

CPU = torch.device("cpu")
TOKENIZER = load_tokenizer("random", 384)
PROMPTS = [row.query[: 4 + 5 * place] for place, row in enumerate(rows_of(9, 0)[:8])]


def whole_model(name, layers, dtype=torch.float32):
    torch.manual_seed(0)
    config = small_config(name, layers)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=dtype
    )
    with torch.no_grad():
        # Wide enough apart that no two tokens tie.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model.eval()


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("name", ["3B-mini", "7B-mini", "27B-mini"])
def test_texts_are_those_of_the_whole_model(name, layers):
    if name == "27B-mini" and layers < 5:
        layers += 3  # its first full-attention layer is the fourth
    model = whole_model(name, layers)
    weights = dict(model.named_parameters())
    streamed = streamed_model(model.config, weights, CPU)
    expected = generate(model, TOKENIZER, PROMPTS, 12, batch=4)
    assert generate(streamed, TOKENIZER, PROMPTS, 12, batch=4) == expected
    assert any(expected)
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, model(ids).logits)


def test_only_two_layers_are_on_the_device():
    model = whole_model("7B-mini", 6)
    streamed = streamed_model(model.config, dict(model.named_parameters()), CPU)
    layers = streamed.model.layers
    places = {
        parameter.untyped_storage().data_ptr()
        for layer in layers
        for parameter in layer.parameters()
    }
    assert len(places) == 1
    stream = streamed.stream[0]
    one = sum(p.numel() for p in model.model.layers[0].parameters())
    assert 2 * one <= stream._slots.numel() < 2.2 * one
    first = layers[0].self_attn.q_proj.weight.data_ptr()
    assert layers[2].self_attn.q_proj.weight.data_ptr() == first
    assert layers[1].self_attn.q_proj.weight.data_ptr() != first


def test_a_layer_that_did_not_arrive_is_noticed():
    """A planted fault: without the copies the texts cannot be right."""
    model = whole_model("3B-mini", 5)
    streamed = streamed_model(model.config, dict(model.named_parameters()), CPU)
    streamed.stream[0]._fetch = lambda index: None
    expected = generate(model, TOKENIZER, PROMPTS, 8, batch=4)
    assert generate(streamed, TOKENIZER, PROMPTS, 8, batch=4) != expected


def test_a_folder_streams_when_asked_or_when_it_does_not_fit(tmp_path, monkeypatch):
    model = whole_model("3B-mini", 3)
    named = model.named_parameters()
    save_pretrained(tmp_path / "w", named, model.config, TOKENIZER)
    expected = generate(model, TOKENIZER, PROMPTS, 6, batch=4)
    assert not hasattr(load_model(tmp_path / "w", CPU), "stream")
    always = load_model(tmp_path / "w", CPU, "always")
    monkeypatch.setattr(initial, "fits", lambda size, device: size < 1000)
    auto = load_model(tmp_path / "w", CPU)
    assert not hasattr(load_model(tmp_path / "w", CPU, "never"), "stream")
    for streamed in (always, auto):
        assert hasattr(streamed, "stream")
        assert generate(streamed, TOKENIZER, PROMPTS, 6, batch=4) == expected


def test_initial_weights_stream_too():
    model = whole_model("3B-mini", 3)
    streamed = streamed_model(model.config, dict(model.named_parameters()), CPU)
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        expected = initial_model(model, 3, CPU)(ids).logits
        assert torch.equal(initial_model(streamed, 3, CPU)(ids).logits, expected)


def test_a_models_own_settings_do_not_bend_the_search():
    model = whole_model("3B-mini", 2)
    expected = generate(model, TOKENIZER, PROMPTS, 12, batch=4)
    model.generation_config.repetition_penalty = 3.0
    model.generation_config.do_sample = True
    assert generate(model, TOKENIZER, PROMPTS, 12, batch=4) == expected


def test_missing_and_misshapen_weights_are_named():
    model = whole_model("3B-mini", 2)
    weights = dict(model.named_parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(InvalidInput, match="up_proj"):
        streamed_model(model.config, weights | {name: torch.zeros(3)}, CPU)
    del weights[name]
    with pytest.raises(InvalidInput, match="missing"):
        streamed_model(model.config, weights, CPU)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3B-mini", "27B-mini"])
def test_texts_on_a_gpu_are_those_of_the_whole_model(name):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda")
    model = whole_model(name, 6)
    streamed = streamed_model(model.config, dict(model.named_parameters()), device)
    model.to(device)
    assert next(streamed.parameters()).is_cuda
    expected = generate(model, TOKENIZER, PROMPTS, 24, batch=8)
    for _ in range(3):
        assert generate(streamed, TOKENIZER, PROMPTS, 24, batch=8) == expected
