"""Which decoders can be streamed, and a probe for those that nobody has verified.

A decoder is streamed as embedding, layers, norm and head. A family that does more in
between (scaled embeddings, capped logits, a rotary table per layer type) would train
silently wrong; so families outside the verified list are rebuilt small with random
weights and their logits compared with the library's own forward.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder
from lazytrain.models.mixer import own_mixers

VERIFIED: Final = frozenset({"qwen2", "qwen3", "llama", "mistral", "qwen3_5_text"})
LAYER_TYPES: Final = frozenset(
    {"full_attention", "sliding_attention", "linear_attention"}
)
TOLERANCE: Final = 1e-4  # relative, of logits in fp32
PROBE_TOKENS: Final = 24
PROBE_WINDOW: Final = 8
PROBE_VOCAB: Final = 96


def window_of(config: Any, layer_type: str) -> int | None:
    """Return how many tokens a layer's attention sees; None: all before it.

    Where a configuration names no types of layers, one window holds for all.
    """
    window: int | None = getattr(config, "sliding_window", None)
    if getattr(config, "layer_types", None):
        return window if layer_type == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def attention_mask(
    documents: Tensor | None, tokens: int, window: int | None, device: torch.device
) -> Tensor | None:
    """Return which tokens a token may look at: bool ``[1 or b, 1, T, T]``.

    Args:
        documents: ``[b, T]`` or None for one document per row.
        tokens: T.
        window: How many tokens it sees, itself included; None: all before it.
        device: Where the mask lives.

    Returns:
        None where causal attention says the same without a mask.
    """
    if documents is None and (window is None or window >= tokens):
        return None
    place = torch.arange(tokens, device=device)
    distance = place[:, None] - place[None, :]
    allowed = (distance >= 0)[None]
    if window is not None:
        allowed = allowed & (distance < window)
    if documents is not None:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    return allowed[:, None]


def check_family(decoder: Decoder) -> None:
    """Refuse a model whose layers, streamed one by one, are not the model.

    Raises:
        InvalidInput: If a layer type is unknown, layers of one type differ, a layer's
            forward takes other arguments, or the probe's logits differ.
    """
    unknown = set(decoder.layer_types) - LAYER_TYPES
    if unknown:
        raise _refusal(decoder, f"has layers of type {', '.join(sorted(unknown))}")
    if decoder.config.model_type in VERIFIED:
        return
    _check_layers(decoder)
    difference = probe(decoder)
    if not difference <= TOLERANCE:
        reason = f"differs by {difference:.1e} from its parts run one by one"
        raise _refusal(decoder, reason)


def _refusal(decoder: Decoder, reason: str) -> InvalidInput:
    """Return an error that names the model's class and the library's version."""
    version = transformers.__version__
    remedy = (
        f"{reason} (transformers {version}); verified families are "
        f"{', '.join(sorted(VERIFIED))}"
    )
    return InvalidInput("model", decoder.class_name, remedy)


def _settings(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's classes, shapes and plain attributes, by name."""
    found: dict[str, Any] = {}
    for name, module in layer.named_modules():
        found[name] = type(module).__name__
        for key, value in vars(module).items():
            is_plain = isinstance(value, bool | int | float | str)
            if is_plain and key != "layer_idx":
                found[f"{name}.{key}"] = value
    shapes = {name: tuple(value.shape) for name, value in layer.named_parameters()}
    return found | shapes


def _check_layers(decoder: Decoder) -> None:
    """Refuse layers of one type that differ, and forwards that take other arguments."""
    templates: dict[str, dict[str, Any]] = {}
    for layer, kind in zip(decoder.layers(), decoder.layer_types, strict=True):
        settings = _settings(layer)
        first = templates.setdefault(kind, settings)
        differing = [k for k in first | settings if first.get(k) != settings.get(k)]
        if differing:
            reason = f"has {kind} layers that differ in {differing[0]}"
            raise _refusal(decoder, reason)
        takes = inspect.signature(layer.forward).parameters
        missing = {"position_embeddings", "attention_mask"} - takes.keys()
        if missing:
            name = type(layer).__name__
            reason = f"has {name} layers that take no {', '.join(sorted(missing))}"
            raise _refusal(decoder, reason)


def shrunk(decoder: Decoder) -> Any:
    """Return a small configuration of the same family: one layer of each type.

    Head sizes and everything that sets behaviour stay; counts and widths shrink.
    """
    config = copy.deepcopy(decoder.config)
    kinds = list(dict.fromkeys(decoder.layer_types))
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    few = min(groups, 2)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    changes = {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_key_value_heads": few,
        "num_attention_heads": few * heads // groups,
        "head_dim": head_dim,
        "hidden_size": few * heads // groups * head_dim,
        "vocab_size": PROBE_VOCAB,
        "sliding_window": PROBE_WINDOW,
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    for name, value in config.to_dict().items():
        if name.endswith("intermediate_size") and isinstance(value, int):
            setattr(config, name, 64)
        elif name.endswith("_token_id"):
            setattr(config, name, None)
    return config


def probe(decoder: Decoder) -> float:
    """Return the relative difference of logits between the library's and our path.

    Raises:
        InvalidInput: If the family cannot be run small, or its parts not one by one.
    """
    kinds = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
    try:
        small = shrunk(decoder)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(
                small, attn_implementation="sdpa", dtype=torch.float32
            ).eval()
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
            ids = torch.randint(0, PROBE_VOCAB, (2, PROBE_TOKENS))
            truth = model(input_ids=ids, use_cache=False).logits
            streamed = _streamed(Decoder(small), dict(model.named_parameters()), ids)
    except kinds as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _refusal(decoder, f"cannot be run layer by layer: {first}") from error
    return float((streamed - truth).norm() / truth.norm())


def _streamed(decoder: Decoder, weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return logits ``[b, T, V]`` the way the executor computes them."""
    cpu, tokens = ids.device, ids.shape[1]
    rotary = decoder.rotary(tokens, cpu, torch.float32)
    embedding, *layers, head = decoder.parts
    hidden = F.embedding(ids, weights[embedding.prefix + "weight"])
    for part in layers:
        template = decoder.template(part.layer_type).eval()
        own_mixers(template)
        window = window_of(decoder.config, part.layer_type)
        mask = attention_mask(None, tokens, window, cpu)
        if part.layer_type == "linear_attention":
            mask = None
        named = {name: weights[part.prefix + name] for name in part.tensors}
        keywords = {"position_embeddings": rotary, "attention_mask": mask}
        output = functional_call(template, named, (hidden,), keywords)
        hidden = output[0] if isinstance(output, tuple) else output
    names = [name.removeprefix("model.norm.") for name in head.tensors]
    norm = {n: weights[f"model.norm.{n}"] for n in names if not n.startswith("lm_head")}
    normed: Tensor = functional_call(decoder.norm(), norm, (hidden,))
    tied = weights[embedding.prefix + "weight"]
    return normed @ weights.get("lm_head.weight", tied).T
