"""A tensor on a tier: its shape is known now, its values are read when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DeferredTensor:
    """What a writer of files needs of a tensor, without its bytes in host memory.

    Attributes:
        dtype: Dtype of the values.
        shape: Their shape.
        load: Reads them into host memory, anew at each call.
    """

    dtype: torch.dtype
    shape: torch.Size
    load: Callable[[], Tensor]

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.element_size()


def loaded(tensor: Tensor | DeferredTensor) -> Tensor:
    """Return a tensor's values in host memory."""
    return tensor.load() if isinstance(tensor, DeferredTensor) else tensor
