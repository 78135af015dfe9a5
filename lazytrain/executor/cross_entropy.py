"""Cross-entropy and its gradient in one pass over a chunk of logits, in place.

The log-sum-exp is taken in fp32 whatever the logits' dtype, and the scale (one over the
number of supervised tokens of the whole batch) is applied in fp32 before the gradient
is rounded. On CUDA a Triton kernel reads each row twice and writes it once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def cross_entropy_(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Replace logits by the gradient of the scaled loss; return unscaled losses.

    Args:
        logits: ``[n, V]``, overwritten with ``scale * (softmax - one_hot)``.
        labels: ``[n]`` int64, every entry a valid class.
        scale: Weight of each row in the loss.

    Returns:
        ``[n]`` fp32 negative log-likelihoods.
    """
    if logits.is_cuda:
        return _cross_entropy_cuda_(logits, labels, scale)
    wide = logits.float()
    log_sum = torch.logsumexp(wide, dim=-1)
    rows = torch.arange(labels.shape[0])
    losses = log_sum - wide[rows, labels]
    wide = torch.exp(wide - log_sum[:, None])
    wide[rows, labels] -= 1.0
    logits.copy_(wide.mul_(scale))
    return losses


def _cross_entropy_cuda_(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    kernel = _kernel()
    kernel[(logits.shape[0],)](
        logits, labels, losses, scale, logits.shape[1], logits.stride(0), BLOCK=8192
    )
    return losses


@functools.cache
def _kernel() -> Any:
    """Build the Triton kernel on first use: Triton exists only with CUDA."""
    from lazytrain.executor.cross_entropy_kernel import cross_entropy_kernel

    return cross_entropy_kernel
