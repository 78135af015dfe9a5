"""A model's sizes from its ``config.json`` alone: parameters and FLOPs per layer.

Covers decoders with grouped-query attention and gated MLPs (Llama, Mistral, Qwen2,
Qwen3), hybrids of linear and full attention (Qwen3.5), and mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lazytrain.errors import InvalidInput


@dataclass(frozen=True)
class LayerShape:
    """One layer type: all parameters, those a token uses, and attention width.

    ``kept_elements`` is what autograd keeps per token, ``attention`` the width over
    which every token attends to every earlier one (0 for linear attention).
    """

    parameters: int
    active_parameters: int
    attention: int
    kept_elements: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder's sizes."""

    name: str
    hidden: int
    vocab: int
    tied: bool
    layer_types: tuple[str, ...]
    layers: Mapping[str, LayerShape]

    @property
    def embedding_parameters(self) -> int:
        """The embedding's parameters."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Final norm and output projection; a tied projection is not counted."""
        return self.hidden + (0 if self.tied else self.vocab * self.hidden)

    @property
    def num_parameters(self) -> int:
        """N, a tied weight counted once."""
        layers = sum(self.layers[kind].parameters for kind in self.layer_types)
        return layers + self.embedding_parameters + self.head_parameters


def model_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    """Read a Hugging Face configuration.

    Raises:
        InvalidInput: If a field is missing or the family is not a known decoder.
    """
    text = config.get("text_config") or config
    _check_decoder(config, name)
    count = _need(text, "num_hidden_layers", name)
    kinds = _layer_types(text, count)
    return ModelShape(
        name=name,
        hidden=_need(text, "hidden_size", name),
        vocab=_need(text, "vocab_size", name),
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings"))),
        layer_types=kinds,
        layers={kind: _layer(text, kind, name) for kind in dict.fromkeys(kinds)},
    )


def _check_decoder(config: Mapping[str, Any], name: str) -> None:
    """Refuse an encoder: its sizes would pass for a decoder's."""
    classes = config.get("architectures") or []
    if classes and not any(
        kind.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
        for kind in classes
    ):
        remedy = f"{name} is no decoder-only language model; name one that is"
        raise InvalidInput("architectures", classes, remedy)
    if is_encoder(config):
        remedy = f"{name} is an encoder or an encoder-decoder; name a decoder"
        raise InvalidInput("model_type", config.get("model_type"), remedy)


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a configuration says that it is not (only) a decoder."""
    encoders = ("bert", "roberta", "electra", "deberta", "albert", "t5", "bart")
    kind = str(config.get("model_type", ""))
    return bool(config.get("is_encoder_decoder")) or kind.endswith(encoders)


def _need(config: Mapping[str, Any], field: str, name: str) -> int:
    """Return a required whole number."""
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise InvalidInput(field, value, f"{name} is no decoder configuration")
    return value


def _layer_types(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return each layer's type; sliding and full attention cost the same here."""
    given = config.get("layer_types")
    if given:
        if len(given) != count:
            raise InvalidInput("layer_types", len(given), f"needs {count} entries")
        return tuple(
            kind if kind == "linear_attention" else "full_attention" for kind in given
        )
    every = config.get("full_attention_interval")
    if every:
        return tuple(
            "linear_attention" if (i + 1) % every else "full_attention"
            for i in range(count)
        )
    return ("full_attention",) * count


def _layer(config: Mapping[str, Any], kind: str, name: str) -> LayerShape:
    """Return one layer type's shape: mixer, MLP and two norms."""
    hidden = _need(config, "hidden_size", name)
    mixer, width, mixer_kept = (
        _linear_attention(config, name)
        if kind == "linear_attention"
        else _attention(config, name)
    )
    mlp, active, mlp_kept = _mlp(config, name)
    norms = 2 * hidden
    return LayerShape(
        parameters=mixer + mlp + norms,
        active_parameters=mixer + active + norms,
        attention=width,
        # Inputs of both norms, of the mixer, of the MLP, and both residual sums.
        kept_elements=4 * hidden + mixer_kept + mlp_kept,
    )


def _attention(config: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    """Return parameters, attention width and kept elements of full attention."""
    hidden = _need(config, "hidden_size", name)
    heads = _need(config, "num_attention_heads", name)
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    family = str(config.get("model_type", ""))
    gated = 2 if family.startswith(("qwen3_5", "qwen3_next")) else 1
    query, key_value = heads * head_dim, 2 * kv_heads * head_dim
    weights = hidden * (gated * query + key_value) + query * hidden
    if config.get("attention_bias", family == "qwen2"):
        weights += query + key_value
    if family.startswith("qwen3"):
        weights += 2 * head_dim
    return weights, query, gated * query + key_value + query


def _linear_attention(config: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    """Return the same of a gated delta-rule layer, whose attention width is 0."""
    hidden = _need(config, "hidden_size", name)
    heads = _need(config, "linear_num_value_heads", name)
    key = _need(config, "linear_num_key_heads", name) * _need(
        config, "linear_key_head_dim", name
    )
    head_dim = _need(config, "linear_value_head_dim", name)
    value = heads * head_dim
    kernel = _need(config, "linear_conv_kernel_dim", name)
    mixed = 2 * key + value
    weights = hidden * (mixed + value + 2 * heads) + mixed * kernel
    weights += 2 * heads + head_dim + value * hidden
    return weights, 0, 2 * mixed + 3 * value


def _mlp(config: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    """Return all and active parameters and kept elements of the (sparse) gated MLP."""
    hidden = _need(config, "hidden_size", name)
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    if not experts:
        inner = _need(config, "intermediate_size", name)
        return 3 * hidden * inner, 3 * hidden * inner, 3 * inner
    inner = config.get("moe_intermediate_size") or _need(
        config, "intermediate_size", name
    )
    top = config.get("num_experts_per_tok") or 1
    router = hidden * experts
    one = 3 * hidden * inner
    return experts * one + router, top * one + router, 3 * top * inner
