"""Exact shapes of every model the tables name, and of their CPU stand-ins.

The values were checked against public configurations (Qwen2.5, Qwen3.5/3.6 text,
SmolLM2); this module is their one home. No weights are needed to build a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lazytrain.errors import InvalidInput


@dataclass(frozen=True)
class Shape:
    """One decoder's dimensions, in the words of Hugging Face configurations."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_dim: int
    tied: bool
    rope_theta: float = 1e6
    num_parameters: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


_QWEN35_27B = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
# Stand-ins learn in hundreds of steps, not in millions: weights start three times as
# wide as usual, and rotary angles turn fast enough for texts of a hundred bytes. With
# the usual values a 7B-mini had not begun to learn its task after 300 steps.
_MINI: dict[str, Any] = {"initializer_range": 0.06}
_MINI_THETA = 100.0
_QWEN35_MINI = _MINI | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}

SHAPES: dict[str, Shape] = {
    "Qwen2.5-0.5B": Shape(
        "qwen2", 896, 24, 14, 2, 4864, 151936, 64, True, 1e6, 494_032_768
    ),
    "Qwen2.5-1.5B": Shape(
        "qwen2", 1536, 28, 12, 2, 8960, 151936, 128, True, 1e6, 1_543_714_304
    ),
    "Qwen2.5-3B": Shape(
        "qwen2", 2048, 36, 16, 2, 11008, 151936, 128, True, 1e6, 3_085_938_688
    ),
    "Qwen2.5-7B": Shape(
        "qwen2", 3584, 28, 28, 4, 18944, 152064, 128, False, 1e6, 7_615_616_512
    ),
    "Qwen2.5-14B": Shape(
        "qwen2", 5120, 48, 40, 8, 13824, 152064, 128, False, 1e6, 14_770_033_664
    ),
    "Qwen2.5-32B": Shape(
        "qwen2", 5120, 64, 40, 8, 27648, 152064, 128, False, 1e6, 32_763_876_352
    ),
    "Qwen3.6-27B": Shape(
        "qwen3_5_text",
        5120,
        64,
        24,
        4,
        17408,
        248320,
        256,
        False,
        1e7,
        26_895_998_464,
        _QWEN35_27B,
    ),
    "SmolLM2-135M": Shape(
        "llama", 576, 30, 9, 3, 1536, 49152, 64, True, 1e5, 134_515_008
    ),
    "3B-mini": Shape("qwen2", 96, 6, 6, 2, 256, 384, 16, True, _MINI_THETA, 0, _MINI),
    "7B-mini": Shape("qwen2", 128, 8, 8, 4, 384, 384, 16, False, _MINI_THETA, 0, _MINI),
    "14B-mini": Shape(
        "qwen2", 160, 10, 8, 4, 448, 384, 20, False, _MINI_THETA, 0, _MINI
    ),
    "27B-mini": Shape(
        "qwen3_5_text", 128, 8, 4, 2, 384, 384, 32, False, _MINI_THETA, 0, _QWEN35_MINI
    ),
}


def shape_of(name: str) -> Shape:
    """Return a model's shape.

    Raises:
        InvalidInput: If the name is not in the table.
    """
    if name not in SHAPES:
        raise InvalidInput("model", name, f"choose one of {', '.join(SHAPES)}")
    return SHAPES[name]


def model_config(name: str) -> Any:
    """Return the Hugging Face configuration of a named model."""
    from transformers import AutoConfig  # seconds: names alone need none of it

    shape = shape_of(name)
    values: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocab,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5 if shape.family == "llama" else 1e-6,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **shape.extra,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.family == "qwen3_5_text":
        # Text positions repeat over the three sections, so mrope acts as plain rope.
        rope |= {"partial_rotary_factor": 0.25, "mrope_interleaved": True}
        rope["mrope_section"] = _mrope_sections(shape.head_dim)
        values["full_attention_interval"] = 4
    values["rope_parameters"] = rope
    return AutoConfig.for_model(shape.family, **values)


def _mrope_sections(head_dim: int) -> list[int]:
    """Split the rotary half-dimension in three, 11/11/10 at head_dim 256."""
    half = head_dim // 4 // 2
    third = -(-half // 3)
    return [third, third, half - 2 * third]
