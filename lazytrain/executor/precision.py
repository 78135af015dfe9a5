"""TF32 for the few fp32 matrix products inside bf16 layers.

The delta rule of linear-attention layers computes in fp32, and plain fp32 products miss
the tensor cores: they were about half of such a layer's time on an H200. TF32 keeps 10
bits of the mantissa where bf16 keeps 7, so its error is below that of the bf16 inputs.
Only layer calls run under it: rotary angles, say, are products too, and need all bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

LINEAR_ATTENTION = "linear_attention"


def uses_tf32(layer_type: str, tensor: torch.Tensor) -> bool:
    """Whether fp32 products may run as TF32: bf16 linear attention on CUDA."""
    return (
        layer_type == LINEAR_ATTENTION
        and tensor.is_cuda
        and tensor.dtype == torch.bfloat16
    )


@contextlib.contextmanager
def matmul_precision(layer_type: str, tensor: torch.Tensor) -> Iterator[None]:
    """Run a layer's forward or backward at its precision; the setting is global."""
    if not uses_tf32(layer_type, tensor):
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
