"""GGUF files give the weights that were put into them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder
from lazytrain.models.gguf import GgufFile, gguf_config, hugging_face_name, is_gguf
from lazytrain.models.given import GivenWeights

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")
HEADS, KV_HEADS, LAYERS, HIDDEN, VOCAB = 4, 2, 2, 64, 96


def tiny_model(family, tied):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        intermediate_size=128,
        vocab_size=VOCAB,
        tie_word_embeddings=tied,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def interleaved(weight, heads):
    """Order the rows of a head as Llama files have them: halves in turn."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return rows.transpose(1, 2).reshape(weight.shape)


def stored_names(family):
    """Return the file's name of every Hugging Face name, by the package's own map."""
    kind = {
        "llama": gguf.MODEL_ARCH.LLAMA,
        "qwen2": gguf.MODEL_ARCH.QWEN2,
        "qwen3": gguf.MODEL_ARCH.QWEN3,
    }[family]
    return gguf.get_tensor_name_map(kind, LAYERS)


def write_file(path, model, family, quantise=None, extra=()):
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    names = stored_names(family)
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        if family == "llama" and ".q_proj." in name:
            tensor = interleaved(tensor, HEADS)
        if family == "llama" and ".k_proj." in name:
            tensor = interleaved(tensor, KV_HEADS)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array = tensor.contiguous().numpy()
        if quantise is not None and array.ndim == 2:
            packed = gguf.quantize(array, quantise)
            writer.add_tensor(stored, packed, raw_dtype=quantise)
        else:
            writer.add_tensor(stored, array)
    for name in extra:
        writer.add_tensor(name, np.zeros(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_plain_weights_come_back_bit_for_bit(tmp_path, family, tied):
    model = tiny_model(family, tied)
    path = write_file(tmp_path / "m.gguf", model, family, extra=["rope_freqs.weight"])
    assert is_gguf(path)
    weights = GgufFile(path)
    parameters = dict(model.named_parameters())
    assert set(weights) == set(parameters)
    for name, parameter in parameters.items():
        assert torch.equal(weights[name], parameter), name
    config = gguf_config(path)
    assert config.model_type == family
    assert config.tie_word_embeddings == tied
    assert config.num_key_value_heads == KV_HEADS


@pytest.mark.parametrize(("kind", "bound"), [("Q8_0", 0.01), ("Q4_1", 0.12)])
def test_packed_weights_are_near_and_give_near_logits(tmp_path, kind, bound):
    model = tiny_model("llama", True)
    quantise = gguf.GGMLQuantizationType[kind]
    path = write_file(tmp_path / "m.gguf", model, "llama", quantise)
    weights = GgufFile(path)
    for name, parameter in model.named_parameters():
        error = (weights[name] - parameter).norm() / parameter.norm()
        assert error < bound, name
    ids = torch.arange(30).view(2, 15)
    with torch.no_grad():
        expected = model(ids).logits
        model.load_state_dict(dict(weights), strict=False)
        found = model(ids).logits
    assert (found - expected).norm() / expected.norm() < 4 * bound


def test_a_family_or_a_tensor_that_is_not_known_is_named(tmp_path):
    model = tiny_model("llama", True)
    path = write_file(tmp_path / "m.gguf", model, "llama", extra=["blk.0.odd.weight"])
    with pytest.raises(InvalidInput, match=r"blk\.0\.odd"):
        GgufFile(path)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InvalidInput, match="mamba"):
        GgufFile(tmp_path / "other.gguf")
    (tmp_path / "text.gguf").write_text("no such thing")
    with pytest.raises(InvalidInput, match="no whole GGUF"):
        GgufFile(tmp_path / "text.gguf")


def test_names_follow_the_packages_own_map():
    for family in ("llama", "qwen2", "qwen3"):
        names = stored_names(family)
        model = tiny_model(family, False)
        for name, _ in model.named_parameters():
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert hugging_face_name(stored) == name


def test_a_packing_that_nothing_undoes_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((8, 8), dtype=np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InvalidInput, match=r"ffn_up.*cannot be unpacked"):
        _ = GgufFile(path)["model.layers.0.mlp.up_proj.weight"]


@pytest.mark.parametrize("share", [0.02, 0.6, 0.999])
def test_a_file_cut_short_is_no_whole_file(tmp_path, share):
    whole = write_file(tmp_path / "m.gguf", tiny_model("llama", True), "llama")
    data = whole.read_bytes()
    whole.write_bytes(data[: int(share * len(data))])
    for read in (gguf_config, GgufFile):
        with pytest.raises(InvalidInput, match="is no whole GGUF file"):
            read(whole)


def test_damage_to_a_header_is_told_as_such(tmp_path):
    path = write_file(tmp_path / "m.gguf", tiny_model("llama", True), "llama")
    data = path.read_bytes()
    for place in range(24, 600, 23):  # lengths, types and counts among them
        spoilt = bytearray(data)
        spoilt[place] ^= 0x40
        path.write_bytes(spoilt)
        with contextlib.suppress(InvalidInput):  # nothing else may come of it
            dict(GivenWeights(Decoder(gguf_config(path)), GgufFile(path)))
