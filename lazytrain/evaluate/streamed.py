"""Generation with a model that the device cannot hold: its layers stream through.

The module is transformers' own, built without weights. Embedding, final norm and head
stay on the device; each decoder layer finds its weights in one of two device buffers
when it is called, while the next layer's are on their way. Keys and values stay on the
device, so one pass over all layers writes one token for every row of the batch.
Whatever generates with the module - greedy search, masks, caches - is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from lazytrain.errors import InvalidInput
from lazytrain.executor.arena import HostArena
from lazytrain.executor.layout import Layout, part_layout
from lazytrain.models.decoder import Decoder, PartShape
from lazytrain.models.given import GivenWeights
from lazytrain.models.load import (
    folder_config,
    folder_generation,
    safetensors_folder,
)

SLOTS: Final = 2


class LayerStream:
    """Brings layers' weights to the device, one ahead of the layer that runs.

    Args:
        layers: Decoder layers whose parameters lie on the meta device.
        layouts: Each layer's layout.
        host: Each layer's flat host buffer, pinned where the device is a GPU.
        device: Where the layers run.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        layouts: list[Layout],
        host: list[Tensor],
        device: torch.device,
    ) -> None:
        self._host = host
        self._numels = [layout.numel for layout in layouts]
        self._is_cuda = device.type == "cuda"
        shape = (SLOTS, max(self._numels))
        self._slots = torch.empty(shape, dtype=host[0].dtype, device=device)
        self._holds: list[int | None] = [None] * SLOTS
        self._copies: Any = torch.cuda.Stream(device) if self._is_cuda else None
        self._arrived: list[Any] = [self._event() for _ in range(SLOTS)]
        self._left: list[Any] = [self._event() for _ in range(SLOTS)]
        for index, (layer, layout) in enumerate(zip(layers, layouts, strict=True)):
            # A layer always runs in the same buffer, so its views are made once.
            bind(layer, layout.named_views(self._slots[index % SLOTS]))
            layer.register_forward_pre_hook(self._before(index))
            layer.register_forward_hook(self._after(index))

    def _event(self) -> Any:
        return torch.cuda.Event() if self._is_cuda else None

    def _fetch(self, index: int) -> None:
        """Start a layer's copy into its buffer, behind the layer that used it last."""
        slot = index % SLOTS
        if self._holds[slot] == index:
            return
        target = self._slots[slot][: self._numels[index]]
        source = self._host[index][: self._numels[index]]
        if self._is_cuda:
            with torch.cuda.stream(self._copies):
                self._copies.wait_event(self._left[slot])
                target.copy_(source, non_blocking=True)
                self._arrived[slot].record(self._copies)
        else:
            target.copy_(source)
        self._holds[slot] = index

    def _before(self, index: int) -> Callable[..., None]:
        def arrive(module: nn.Module, args: Any) -> None:
            del module, args
            self._fetch(index)
            if self._is_cuda:
                torch.cuda.current_stream().wait_event(self._arrived[index % SLOTS])

        return arrive

    def _after(self, index: int) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            del module, args, output
            if self._is_cuda:
                self._left[index % SLOTS].record(torch.cuda.current_stream())
            self._fetch((index + 1) % len(self._host))

        return leave


def bind(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Let a module's parameters be these tensors."""
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        parameters = module.get_submodule(owner)._parameters
        parameters[leaf] = nn.Parameter(tensor, requires_grad=False)


def streamed_model(
    config: Any,
    weights: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Any:
    """Return a transformers model that generates with its layers streamed.

    Args:
        config: Hugging Face configuration of a causal language model.
        weights: Weights by Hugging Face name, read part by part.
        device: Where to compute.
        dtype: Dtype of weights and hidden states; None keeps the weights'.

    Raises:
        InvalidInput: If a weight is missing or has another shape, or the model holds
            state beside its weights that is not known here.
    """
    decoder = Decoder(config)
    kind = dtype or weights["model.norm.weight"].dtype
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=kind
        )
    first, *middle, last = decoder.parts
    for part in (first, last):
        tensors = {
            part.prefix + name: checked(weights, part, name).to(device, kind)
            for name in part.tensors
        }
        bind(model, tensors)
    model.tie_weights()
    renew_rotary(model, config, device)
    refuse_lost_state(model)
    layouts = [part_layout(part, kind) for part in middle]
    sizes = {
        part.name: layout.numel * kind.itemsize
        for part, layout in zip(middle, layouts, strict=True)
    }
    arena = HostArena(sizes, pin=device.type == "cuda")
    host = [arena.buffer(part.name, kind) for part in middle]
    for part, layout, flat in zip(middle, layouts, host, strict=True):
        for name, view in layout.named_views(flat).items():
            view.copy_(checked(weights, part, name))
    # The arena lives as long as the model that reads from it.
    model.stream = (LayerStream(list(model.model.layers), layouts, host, device), arena)
    return model.eval()


def renew_rotary(model: Any, config: Any, device: torch.device) -> None:
    """Build the rotary frequencies, which a module without weights lacks."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config).to(device)


def checked(weights: Mapping[str, Tensor], part: PartShape, name: str) -> Tensor:
    """Return one weight of a part, of the shape that the part wants.

    Raises:
        InvalidInput: If it is missing or has another shape.
    """
    full = part.prefix + name
    if full not in weights:
        raise InvalidInput("weights", full, "is missing from the given weights")
    tensor = weights[full].detach()
    if tuple(tensor.shape) != part.tensors[name]:
        expected = part.tensors[name]
        raise InvalidInput(full, tuple(tensor.shape), f"expected {expected}")
    return tensor


def refuse_lost_state(model: nn.Module) -> None:
    """Refuse buffers that only a full construction of the model would fill."""
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            remedy = "this model cannot be streamed; evaluate it on a larger device"
            raise InvalidInput("buffer", name, remedy)


def streamed_folder(folder: Path, device: torch.device) -> Any:
    """Return the model of a Hugging Face folder with its layers streamed.

    Raises:
        InvalidInput: If the folder holds no whole decoder in safetensors.
    """
    config = folder_config(folder)
    weights = GivenWeights(Decoder(config), safetensors_folder(folder))
    model = streamed_model(config, weights, device)
    generation = folder_generation(folder)
    if generation is not None:
        model.generation_config = generation
    return model


def folder_bytes(folder: Path) -> int:
    """Return the bytes of a folder's safetensors."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def fits(size_bytes: int, device: torch.device, share: float = 0.7) -> bool:
    """Say whether weights leave room for keys, values and logits on a device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size_bytes <= share * free
