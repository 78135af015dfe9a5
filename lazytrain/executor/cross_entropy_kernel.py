"""The Triton kernel behind :mod:`lazytrain.executor.cross_entropy`: one program a row.

The first pass keeps a running maximum and a rescaled running sum; the second writes the
gradient over the logits it read.
"""

# Triton reads annotations as types of its own, so this file has no typed signature.
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(
    logits, labels, losses, scale, num_classes, row_stride, BLOCK: tl.constexpr
):
    """Turn one row of logits into the gradient of its loss."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * row_stride
    label = tl.load(labels + row)
    offsets = tl.arange(0, BLOCK)
    maximum = float("-inf")
    total = 0.0
    for first in range(0, num_classes, BLOCK):
        inside = first + offsets < num_classes
        x = tl.load(start + first + offsets, mask=inside, other=float("-inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(x - higher), axis=0)
        maximum = higher
    log_sum = maximum + tl.log(total)
    own = tl.load(start + label).to(tl.float32)
    tl.store(losses + row, log_sum - own)
    # Every thread must have read the label's logit before any overwrites it.
    tl.debug_barrier()
    for first in range(0, num_classes, BLOCK):
        inside = first + offsets < num_classes
        x = tl.load(start + first + offsets, mask=inside, other=float("-inf"))
        gradient = tl.exp(x.to(tl.float32) - log_sum)
        gradient = tl.where(first + offsets == label, gradient - 1.0, gradient) * scale
        gradient = gradient.to(logits.dtype.element_ty)
        tl.store(start + first + offsets, gradient, mask=inside)
