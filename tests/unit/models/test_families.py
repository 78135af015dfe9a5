"""Families that are not what their parts run one by one are refused by name."""

import pytest
import torch
import transformers
from streaming import engine_for, plan_for, random_batch
from transformers import AutoConfig

from lazytrain.errors import InvalidInput
from lazytrain.models import families
from lazytrain.models.decoder import Decoder
from lazytrain.models.families import VERIFIED, check_family, probe, window_of
from lazytrain.models.scales import model_config

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def decoder_of(family, **fields):
    return Decoder(AutoConfig.for_model(family, **(SMALL | fields)))


@pytest.mark.parametrize("family", sorted(VERIFIED))
def test_the_verified_list_is_verified(family):
    """The list is a shortcut for the probe, so the probe must agree."""
    if family == "qwen3_5_text":
        decoder = Decoder(model_config("27B-mini"))
    else:
        decoder = decoder_of(family)
    families._check_layers(decoder)
    assert probe(decoder) < 1e-5


@pytest.mark.parametrize("family", ["olmo2", "granite", "starcoder2", "exaone4"])
def test_other_plain_decoders_pass(family):
    check_family(decoder_of(family))


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("gemma", {}, "differs by"),  # embeddings are scaled
        ("granite", {"logits_scaling": 8.0}, "differs by"),
        ("granite", {"embedding_multiplier": 12.0}, "differs by"),
        ("cohere", {}, "differs by"),  # logits are scaled
        ("gemma3_text", {}, "layer_type"),  # a rotary table per layer type
        ("smollm3", {}, "use_rope"),  # layers without positions
    ],
)
def test_families_that_do_more_are_refused(family, fields, reason):
    decoder = decoder_of(family, **fields)
    with pytest.raises(InvalidInput, match=reason) as refused:
        check_family(decoder)
    assert decoder.class_name in str(refused.value)
    assert transformers.__version__ in str(refused.value)


def test_an_unknown_forward_is_refused(monkeypatch):
    decoder = decoder_of("olmo2")
    kind = type(next(decoder.layers()))
    monkeypatch.setattr(kind, "forward", lambda self, hidden_states: hidden_states)
    with pytest.raises(InvalidInput, match="position_embeddings"):
        check_family(decoder)


def test_an_unknown_layer_type_is_refused_in_any_family():
    decoder = decoder_of("qwen2")
    decoder.__dict__["layer_types"] = ("chunked_attention",) * 4
    with pytest.raises(InvalidInput, match="chunked_attention"):
        check_family(decoder)


def test_an_engine_refuses_before_it_allocates():
    config = AutoConfig.for_model("gemma", **SMALL)
    plan = plan_for(config, "GGGGG")
    with pytest.raises(InvalidInput, match="GemmaForCausalLM"):
        engine_for(config, plan)


def test_windows_by_configuration():
    qwen = AutoConfig.for_model(
        "qwen2",
        **SMALL,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=2,
    )
    assert qwen.layer_types[1:3] == ["full_attention", "sliding_attention"]
    assert window_of(qwen, "full_attention") is None
    assert window_of(qwen, "sliding_attention") == 6
    mistral = AutoConfig.for_model("mistral", **SMALL, sliding_window=6)
    assert window_of(mistral, "full_attention") == 6
    assert window_of(AutoConfig.for_model("llama", **SMALL), "full_attention") is None


@pytest.mark.parametrize("family", ["qwen2", "mistral"])
def test_sliding_windows_match_the_library(family):
    """A window far below the row's length, against the plain model's loss."""
    from streaming import reference_gradients, relative_error, weights_of

    fields = {"sliding_window": 6, "tie_word_embeddings": False}
    if family == "qwen2":
        fields |= {"use_sliding_window": True, "max_window_layers": 2}
    config = AutoConfig.for_model(family, **(SMALL | fields))
    engine = engine_for(config, plan_for(config, "GRGGG"))
    weights, batch = weights_of(engine), random_batch(config.vocab_size)
    step = engine.train_step(batch, 0.0).result()
    loss, gradients = reference_gradients(config, weights, batch)
    assert step.loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in engine.host_gradients():
        assert relative_error(gradient, gradients[name]) < 1e-5, name
    full = AutoConfig.for_model(family, **(SMALL | fields | {"sliding_window": None}))
    whole, _ = reference_gradients(full, weights, batch)
    assert loss != pytest.approx(whole, rel=1e-5)
    engine.close()


def test_the_probe_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    probe(decoder_of("olmo2"))
    assert torch.equal(torch.rand(3), expected)
