"""Whether given weights are those of the model that their configuration describes.

A weight that is left out, read without its scale, or tied against its file would give a
model that trains and exports without a complaint and is another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder

log = logging.getLogger(__name__)
FLOATS: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST_NAMED: Final = 3
_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
# Computed from the configuration; some checkpoints hold them nevertheless.
_DERIVED: Final = ("rotary_emb.inv_freq",)
_DEQUANTISE: Final = (
    "has no trainable value without its scales; dequantise the model first, or give "
    "its original weights"
)


class GivenWeights(Mapping[str, Tensor]):
    """A model's weights by Hugging Face name, each checked when it is read.

    Args:
        decoder: The model.
        weights: Its weights; names that it lacks are left out, with a warning.

    Raises:
        InvalidInput: If the configuration says that they are quantised, one is missing,
            or the head is to be tied and is another matrix than the embedding.
    """

    def __init__(self, decoder: Decoder, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._shapes = {
            part.prefix + name: shape
            for part in decoder.parts
            for name, shape in part.tensors.items()
        }
        _check_plain(decoder.config)
        self._check_names(decoder.tied)
        if decoder.tied and _HEAD in weights:
            self._check_tie()

    def _check_names(self, is_tied: bool) -> None:
        missing = [name for name in self._shapes if name not in self._weights]
        if missing:
            remedy = (
                f"{len(missing)} of {len(self._shapes)} weights are missing; fetch the "
                "model again, or set config.json to what the files hold"
            )
            raise InvalidInput("weights", _few(missing), remedy)
        extra = sorted(
            name
            for name in set(self._weights) - set(self._shapes)
            if not name.endswith(_DERIVED) and not (is_tied and name == _HEAD)
        )
        if extra:
            log.warning(
                "weights without a use: the configuration has no %s (%d in all)",
                _few(extra),
                len(extra),
            )

    def _check_tie(self) -> None:
        # One after the other: two tables of a large vocabulary take gigabytes.
        head, table = self._weights[_HEAD], self[_EMBEDDING]
        if head.shape != table.shape or not torch.equal(head.to(table.dtype), table):
            remedy = (
                f"differs from {_EMBEDDING}, but the configuration ties the two; set "
                "tie_word_embeddings: false in config.json to keep both"
            )
            raise InvalidInput("weights", _HEAD, remedy)

    def __getitem__(self, name: str) -> Tensor:
        """Read one weight.

        Raises:
            InvalidInput: If it is of another shape, or of a dtype that needs a scale.
        """
        tensor = self._weights[name]
        if tuple(tensor.shape) != self._shapes[name]:
            remedy = f"expected {self._shapes[name]}, as config.json says"
            raise InvalidInput(name, tuple(tensor.shape), remedy)
        if tensor.dtype not in FLOATS:
            raise InvalidInput(name, str(tensor.dtype), _DEQUANTISE)
        return tensor

    def __contains__(self, name: object) -> bool:
        """Say whether the model has a weight of this name, without reading it."""
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        """Iterate over names, in the model's order."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._shapes)


def _check_plain(config: Any) -> None:
    """Refuse a configuration of quantised weights."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return
    given = settings if isinstance(settings, dict) else vars(settings)
    method = str(given.get("quant_method", "unknown"))
    raise InvalidInput("weights", f"quantised by {method}", _DEQUANTISE)


def _few(names: list[str]) -> str:
    """Return the first of some names, as text."""
    more = "" if len(names) <= MOST_NAMED else ", ..."
    return ", ".join(names[:MOST_NAMED]) + more
