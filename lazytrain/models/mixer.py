"""The forward of a gated-delta-rule mixer, on the parameters of the library's module.

Qwen3.5's linear-attention layers: projections, a short causal depthwise convolution,
the gated delta rule, a gated norm. Only attributes and children of the module are read,
none of its file's functions, so that it runs under any release that keeps the names.
The convolution is a sum of shifted products, which fuses with what surrounds it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lazytrain.models.delta_rule import gated_delta_rule

NORM_EPS: Final = 1e-6  # of the keys' and queries' normalisation
PARAMETERS: Final = frozenset(
    {
        "A_log",
        "dt_bias",
        "conv1d.weight",
        "in_proj_a.weight",
        "in_proj_b.weight",
        "in_proj_qkv.weight",
        "in_proj_z.weight",
        "norm.weight",
        "out_proj.weight",
    }
)


def is_known_mixer(module: nn.Module) -> bool:
    """Whether a module has exactly the parameters and sizes that our forward reads."""
    names = {name for name, _ in module.named_parameters()}
    sizes = ("key_dim", "value_dim", "head_k_dim", "head_v_dim")
    return (
        names == PARAMETERS
        and all(hasattr(module, size) for size in sizes)
        and getattr(module, "activation", "silu") == "silu"
    )


def own_mixers(layer: nn.Module) -> int:
    """Give a decoder layer's known mixers our forward; return how many there were."""
    known = [module for module in layer.modules() if is_known_mixer(module)]
    for module in known:
        module.forward = mix.__get__(module)
    return len(known)


def short_convolution(
    inputs: Tensor, weight: Tensor, positions: Tensor | None
) -> Tensor:
    """Return each channel's causal convolution over time.

    Args:
        inputs: ``[b, T, D]``.
        weight: ``[D, W]``, the last column weighs the token itself.
        positions: ``[b, T]`` place of each token in its document: what came before the
            document counts as zero. None if every row is one document.
    """
    width, length = weight.shape[1], inputs.shape[1]
    total = inputs * weight[:, -1]
    for shift in range(1, min(width, length)):
        past = F.pad(inputs[:, : length - shift], (0, 0, shift, 0))
        if positions is not None:
            past = past * (positions >= shift).unsqueeze(-1)
        total = total + past * weight[:, -1 - shift]
    return total


def _normalised(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPS)


def mix(
    module: Any,
    hidden_states: Tensor,
    *_: Any,
    attention_mask: Tensor | None = None,
    **__: Any,
) -> Tensor:
    """Return the mixer's output, ``[b, T, H]`` in and out.

    Args:
        module: The library's mixer, whose parameters and sizes are used.
        hidden_states: ``[b, T, H]``.
        attention_mask: ``[b, T]`` int64 place of each token in its document for packed
            rows, whose state and convolution start anew at 0; else None. Padding on
            the right needs no mask: nothing causal sees it.
    """
    mixed = module.in_proj_qkv(hidden_states)
    wide = torch.promote_types(mixed.dtype, torch.float32)
    weight = module.conv1d.weight.squeeze(1).to(wide)
    mixed = F.silu(short_convolution(mixed.to(wide), weight, attention_mask))
    sizes = [module.key_dim, module.key_dim, module.value_dim]
    query, key, value = mixed.split(sizes, dim=-1)
    width, out_width = module.head_k_dim, module.head_v_dim
    strength = torch.sigmoid(module.in_proj_b(hidden_states))
    step = module.in_proj_a(hidden_states).to(wide) + module.dt_bias
    starts = None if attention_mask is None else (attention_mask == 0).to(wide)
    output = gated_delta_rule(
        _normalised(query.unflatten(-1, (-1, width))) * width**-0.5,
        _normalised(key.unflatten(-1, (-1, width))),
        value.unflatten(-1, (-1, out_width)),
        -module.A_log.to(wide).exp() * F.softplus(step),
        strength,
        starts,
    ).to(hidden_states.dtype)
    gate = module.in_proj_z(hidden_states).unflatten(-1, (-1, out_width))
    # The library's gated norm takes rows of heads.
    normed = module.norm(output.reshape(-1, out_width), gate.reshape(-1, out_width))
    projected: Tensor = module.out_proj(normed.view(*hidden_states.shape[:2], -1))
    return projected
