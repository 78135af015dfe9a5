"""A Hugging Face decoder taken apart into parts that can be streamed.

A part is the embedding, one decoder layer, or the final norm with the head. No whole
model is ever built: parameters exist on the meta device until a part is initialised or
loaded, one part at a time.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from lazytrain.errors import InvalidInput

EMBEDDING = "embedding"
HEAD = "head"


def layer_part(index: int) -> str:
    """Return the part name of decoder layer ``index``."""
    return f"layer.{index}"


@dataclass(frozen=True)
class PartShape:
    """The tensors of one part.

    Attributes:
        name: ``embedding``, ``layer.i`` or ``head``.
        kind: ``embedding``, ``layer`` or ``head``.
        layer_type: Kind of decoder layer; empty for the other parts.
        tensors: Local name to shape, in the module's own order.
        prefix: Prefix that makes a local name a Hugging Face name.
    """

    name: str
    kind: str
    layer_type: str
    tensors: dict[str, tuple[int, ...]]
    prefix: str

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the part."""
        return sum(torch.Size(shape).numel() for shape in self.tensors.values())


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


class Decoder:
    """A decoder-only model as a list of parts and one template per layer type.

    Args:
        config: Hugging Face configuration of a causal language model.

    Raises:
        InvalidInput: If the model is not built as embedding, layers, norm, head.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        with torch.device("meta"):
            self._model = _skeleton(config)
        self._base: Any = getattr(self._model, "model", None)
        for attribute in ("embed_tokens", "layers", "norm", "rotary_emb"):
            if not hasattr(self._base, attribute):
                name = type(self._model).__name__
                raise InvalidInput(
                    "model", name, f"has no model.{attribute}: not a known decoder"
                )

    @property
    def class_name(self) -> str:
        """Name of the library's model class."""
        return type(self._model).__name__

    def layers(self) -> Iterator[nn.Module]:
        """Yield the library's layers, on the meta device."""
        yield from self._base.layers

    @property
    def num_layers(self) -> int:
        """Number of decoder layers L."""
        return len(self._base.layers)

    @property
    def hidden_size(self) -> int:
        """Width of a boundary."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding and of the head."""
        return int(self._base.embed_tokens.weight.shape[0])

    @property
    def tied(self) -> bool:
        """Whether the head projects with the embedding's weight."""
        return bool(getattr(self.config, "tie_word_embeddings", False))

    @cached_property
    def layer_types(self) -> tuple[str, ...]:
        """Type of each layer: layers of one type share a template."""
        types = getattr(self.config, "layer_types", None)
        return tuple(types) if types else ("full_attention",) * self.num_layers

    @cached_property
    def parts(self) -> tuple[PartShape, ...]:
        """All parts in forward order."""
        embedding = PartShape(
            EMBEDDING,
            EMBEDDING,
            "",
            {"weight": tuple(self._base.embed_tokens.weight.shape)},
            "model.embed_tokens.",
        )
        layers = [
            PartShape(
                layer_part(i),
                "layer",
                self.layer_types[i],
                _shapes(layer),
                f"model.layers.{i}.",
            )
            for i, layer in enumerate(self._base.layers)
        ]
        head = {f"model.norm.{k}": s for k, s in _shapes(self._base.norm).items()}
        if not self.tied:
            head |= {"lm_head.weight": tuple(self._model.lm_head.weight.shape)}
        return (embedding, *layers, PartShape(HEAD, HEAD, "", head, ""))

    @property
    def num_parameters(self) -> int:
        """Number of parameters N, a tied weight counted once."""
        return sum(part.num_parameters for part in self.parts)

    def template(self, layer_type: str) -> nn.Module:
        """Return a parameterless body of this layer type, on the meta device."""
        layer: nn.Module = self._base.layers[self.layer_types.index(layer_type)]
        return copy.deepcopy(layer)

    def norm(self) -> nn.Module:
        """Return the final norm's body, on the meta device."""
        norm: nn.Module = self._base.norm
        return copy.deepcopy(norm)

    def rotary(
        self, seq_len: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return rotary cos and sin for positions 0..T-1, each ``[1, T, D]``."""
        rotary = type(self._base.rotary_emb)(config=self.config).to(device)
        probe = torch.empty(1, seq_len, 1, dtype=dtype, device=device)
        positions = torch.arange(seq_len, device=device)[None]
        if hasattr(rotary, "mrope_section"):
            # One grid of positions per section; for text all three are the same.
            positions = positions.expand(3, 1, seq_len)
        with torch.no_grad():
            cos, sin = rotary(probe, positions)
        return cos.contiguous(), sin.contiguous()

    def initial_tensors(
        self, part: PartShape, seed: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Return freshly initialised fp32 tensors of one part, by local name.

        The model class's own initialisation is used; the seed of a part is derived
        from its name, so a part's values do not depend on which others were built.
        """
        modules = self._modules_of(part)
        digest = hashlib.sha256(f"{seed}/{part.name}".encode()).digest()
        found: dict[str, Tensor] = {}
        with torch.random.fork_rng(devices=_rng_devices(device)), torch.no_grad():
            torch.manual_seed(int.from_bytes(digest[:7], "big"))
            for prefix, module in modules.items():
                body = copy.deepcopy(module).to_empty(device=device).float()
                for child in body.modules():
                    self._model._init_weights(child)
                for name, tensor in body.named_parameters():
                    found[prefix + name] = tensor.detach()
        return {name: found[name] for name in part.tensors}

    def _modules_of(self, part: PartShape) -> dict[str, nn.Module]:
        """Return the modules that hold a part's tensors, by local-name prefix."""
        if part.kind == EMBEDDING:
            return {"": self._base.embed_tokens}
        if part.kind == "layer":
            return {"": self._base.layers[int(part.name.split(".")[1])]}
        modules: dict[str, nn.Module] = {"model.norm.": self._base.norm}
        if not self.tied:
            modules["lm_head."] = self._model.lm_head
        return modules


def _skeleton(config: Any) -> Any:
    """Return the library's model on the current device, with torch's attention.

    Raises:
        InvalidInput: If the family has no such attention.
    """
    try:
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("model", config.model_type, reason) from error


def _rng_devices(device: torch.device) -> list[torch.device]:
    """Devices whose random state must be restored beside the CPU's."""
    return [device] if device.type == "cuda" else []
