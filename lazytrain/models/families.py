"""Which decoders can be streamed, and a probe for those that nobody has verified.

A decoder is streamed as embedding, layers, norm and head. A family that does more in
between (scaled embeddings, capped logits, a rotary table per layer type) would train
silently wrong; so families outside the verified list are rebuilt small with random
weights and their logits compared with the library's own forward.
"""

from __future__ import annotations

from typing import Any, Final

VERIFIED: Final = frozenset({"qwen2", "qwen3", "llama", "mistral", "qwen3_5_text"})
LAYER_TYPES: Final = frozenset(
    {"full_attention", "sliding_attention", "linear_attention"}
)


def window_of(config: Any, layer_type: str) -> int | None:
    """Return how many tokens a layer's attention sees; None: all before it.

    Where a configuration names no types of layers, one window holds for all.
    """
    window: int | None = getattr(config, "sliding_window", None)
    if getattr(config, "layer_types", None):
        return window if layer_type == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None
