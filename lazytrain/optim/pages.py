"""Zeroed host memory on huge pages: fewer address look-ups in a pass over gigabytes."""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

import torch
from torch import Tensor

# Rounding to a huge page (2 MiB) must stay below a fraction of what is asked for.
_SMALLEST_BYTES: Final = 64 * 2**20


def zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a flat zero tensor; its pages are taken at the first write.

    Large host tensors come from an anonymous mapping that asks for huge pages.
    """
    size_bytes = count * dtype.itemsize
    has_advice = hasattr(mmap, "MADV_HUGEPAGE")
    if device.type != "cpu" or size_bytes < _SMALLEST_BYTES or not has_advice:
        return torch.zeros(count, dtype=dtype, device=device)
    region = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A kernel built without huge pages refuses the advice; plain pages do.
    with contextlib.suppress(OSError):
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=dtype)
