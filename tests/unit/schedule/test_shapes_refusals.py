"""Configurations that are no decoder's are refused by name."""

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.schedule.shapes import model_shape

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "architectures"),
        ({"model_type": "bert"}, "model_type"),
        ({"model_type": "xlm-roberta"}, "model_type"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "model_type"),
    ],
)
def test_an_encoder_gets_no_estimate(extra, field):
    with pytest.raises(InvalidInput) as caught:
        model_shape(SIZES | extra, "some/model")
    assert caught.value.field == field


def test_a_decoder_of_the_same_sizes_passes():
    config = SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    assert model_shape(config, "some/model").hidden == 64
