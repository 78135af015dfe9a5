"""What autograd keeps between forward and backward, without the memory.

Autograd saves the layer's input and views of the weights. Both live in buffers that are
reused before backward comes, so saving them as they are would go silently wrong. They
are packed as handles - which part, which bytes - and rebound when backward unpacks
them, to wherever the part or the boundary is by then. Everything else that a save level
keeps is the allocator's and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Handle:
    """A view of a reused buffer: where it begins and how it is shaped."""

    owner: str
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # elements of ``dtype`` from the owner's buffer start


@dataclass(frozen=True)
class Range:
    """The device addresses that belong to one owner just now."""

    owner: str
    begin: int
    end: int

    @staticmethod
    def of(owner: str, buffer: Tensor) -> Range:
        """Return the address range of a contiguous buffer."""
        begin = buffer.data_ptr()
        return Range(owner, begin, begin + buffer.numel() * buffer.element_size())


class Rebinder:
    """Packs views of the current layer's buffers and rebinds them later.

    Args:
        resolve: Returns the flat buffer that holds an owner at the time of backward.
    """

    def __init__(self, resolve: Callable[[str], Tensor]) -> None:
        self._resolve = resolve
        self.kept_bytes = 0  # of the last layer that ran under the hooks

    def hooks(self, *ranges: Range) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the hooks to run a layer's forward under."""
        self.kept_bytes = 0

        def pack(tensor: Tensor) -> Tensor | Handle:
            address = tensor.data_ptr()
            for owned in ranges:
                if owned.begin <= address < owned.end:
                    return Handle(
                        owned.owner,
                        tensor.dtype,
                        tensor.size(),
                        tensor.stride(),
                        (address - owned.begin) // tensor.element_size(),
                    )
            self.kept_bytes += tensor.numel() * tensor.element_size()
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(pack, self._unpack)

    def _unpack(self, kept: Tensor | Handle) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        flat = self._resolve(kept.owner).view(kept.dtype)
        base = flat.storage_offset() + kept.offset
        return torch.as_strided(flat, kept.size, kept.stride, base)
