"""How the resident rival runs its layers: the library's way, or compiled.

A compiled layer is our executor's own body, so that the two differ in where things live
and not in kernels. Rows are padded on the right, so causal attention needs no mask, and
the fast kernels that take none are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from lazytrain.executor.bodies import Bodies
from lazytrain.models.decoder import Decoder
from lazytrain.models.families import attention_mask, check_family, window_of

# token ids [B, T] -> final normed states [B, T, H]
Forward = Callable[[Tensor], Tensor]
MULTIPLE: Final = 64  # compiled layers run at lengths that are multiples of it
MAX_GRAPHS: Final = 64  # lengths, with and without gradients, in one run


def forward_of(model: Any, kind: str, *, recompute: bool) -> Forward:
    """Return a model's forward up to the final norm.

    Args:
        model: Hugging Face causal model on its device.
        kind: ``compile`` for compiled layers; any other is the library's own.
        recompute: Whether layers keep their inputs only and compute again in backward.
    """
    if kind == "compile":
        return _Compiled(model, "inputs" if recompute else "all")
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def run(ids: Tensor) -> Tensor:
        states: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return states

    return run


class _Compiled:
    """Layers as one compiled graph per layer type, called with each layer's weights."""

    def __init__(self, model: Any, save_level: str) -> None:
        self._model = model.model
        self._save_level = save_level
        self._decoder = Decoder(model.config)
        check_family(self._decoder)
        parameters = dict(model.named_parameters())
        layers = [part for part in self._decoder.parts if part.kind == "layer"]
        self._layers = [
            (
                part.layer_type,
                [parameters[part.prefix + name] for name in part.tensors],
            )
            for part in layers
        ]
        names = {part.layer_type: list(part.tensors) for part in layers}
        self._bodies = Bodies(self._decoder, names, "compile")
        self._norm: Any = torch.compile(self._model.norm, dynamic=False)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the final normed states ``[B, T, H]`` of token ids ``[B, T]``."""
        tokens, device = ids.shape[1], ids.device
        # Causal layers do not see what is appended, and each length is a graph.
        ids = F.pad(ids, (0, -tokens % MULTIPLE))
        hidden = F.embedding(ids, self._model.embed_tokens.weight)
        width = ids.shape[1]
        cos, sin = self._decoder.rotary(width, device, hidden.dtype)
        kinds = dict(self._layers)
        masks = {kind: self._mask(kind, width, device) for kind in kinds}
        with torch._dynamo.config.patch(recompile_limit=MAX_GRAPHS):
            hidden = self._through(hidden, cos, sin, masks)
            normed: Tensor = self._norm(hidden)
        return normed[:, :tokens]

    def _through(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        masks: dict[str, Tensor | None],
    ) -> Tensor:
        """Run every layer; ``[B, T, H]`` in and out."""
        graph = torch.is_grad_enabled()
        for kind, weights in self._layers:
            body = self._bodies.of(kind, self._save_level, graph=graph)
            hidden = body(hidden, cos, sin, weights, masks[kind])
        return hidden

    def _mask(self, kind: str, tokens: int, device: torch.device) -> Tensor | None:
        """Return the mask that a layer type cannot do without, if any."""
        if kind == "linear_attention":
            return None
        return attention_mask(
            None, tokens, window_of(self._decoder.config, kind), device
        )
