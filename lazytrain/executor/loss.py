"""Final norm, head and loss, forward and backward in one pass over chunks of tokens.

Full logits never exist: a chunk's logits become their own gradient in place, which is
used for the hidden states' and the head's gradients at once. Rows without a label never
reach the head. The denominator is the supervised tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from lazytrain.data.batches import IGNORE
from lazytrain.executor.cross_entropy import cross_entropy_
from lazytrain.models.decoder import Decoder


@dataclass(frozen=True)
class Targets:
    """The supervised positions of one micro-batch, on the device.

    Attributes:
        rows: ``[n]`` int64 indices into the flattened ``[b * T]`` positions.
        labels: ``[n]`` int64 next tokens.
    """

    rows: Tensor
    labels: Tensor


def targets_of(labels: Tensor, device: torch.device) -> Targets:
    """Shift labels and keep the supervised positions; ``[b, T]`` on the host.

    The count is known to the host, so nothing waits for the device.
    """
    following = torch.full_like(labels, IGNORE)
    following[:, :-1] = labels[:, 1:]
    flat = following.flatten()
    rows = torch.nonzero(flat != IGNORE).flatten()
    picked = flat[rows]
    if device.type == "cuda":
        rows, picked = rows.pin_memory(), picked.pin_memory()
    return Targets(
        rows.to(device, non_blocking=True), picked.to(device, non_blocking=True)
    )


def add_outer_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left.T @ right`` to a sum; ``[n, V]``, ``[n, H]`` -> ``[V, H]``.

    Low-precision operands are multiplied with an fp32 result where the device can.
    """
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    elif left.is_cuda:
        total.add_(torch.mm(left.T, right, out_dtype=total.dtype))
    else:
        total.addmm_(left.T.to(total.dtype), right.to(total.dtype))


@dataclass
class HeadTensors:
    """What the head reads and sums into.

    Attributes:
        norm: Final norm's weights.
        projection: ``[V, H]`` head weight (the embedding's when tied).
        norm_sums: Sums of the norm's gradients, fp32.
        projection_sum: ``[V, H]`` fp32 sum of the projection's gradient.
    """

    norm: Sequence[Tensor]
    projection: Tensor
    norm_sums: Sequence[Tensor]
    projection_sum: Tensor


class HeadLoss:
    """The head of a model.

    Args:
        decoder: The model.
        norm_names: Local names of the final norm's parameters.
        chunk_tokens: Rows of logits that exist at a time.
        device: Where it runs.
        dtype: Dtype of hidden states and logits.
    """

    def __init__(
        self,
        decoder: Decoder,
        norm_names: Sequence[str],
        chunk_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._norm = decoder.norm()
        self._names = list(norm_names)
        self._chunk = chunk_tokens
        shape = (chunk_tokens, decoder.vocab_size)
        self._logits = torch.empty(shape, dtype=dtype, device=device)

    def _normed(self, hidden: Tensor, weights: Sequence[Tensor]) -> Tensor:
        named = dict(zip(self._names, weights, strict=True))
        output: Tensor = functional_call(self._norm, named, (hidden,))
        return output

    def evaluate(
        self,
        hidden: Tensor,
        targets: Targets,
        norm: Sequence[Tensor],
        projection: Tensor,
    ) -> Tensor:
        """Return the summed loss of one micro-batch, fp64 scalar."""
        picked = hidden.flatten(0, 1)[targets.rows]
        normed = self._normed(picked, norm)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for start in range(0, normed.shape[0], self._chunk):
            part = normed[start : start + self._chunk]
            logits = self._logits[: part.shape[0]]
            torch.mm(part, projection.T, out=logits)
            labels = targets.labels[start : start + self._chunk]
            total += cross_entropy_(logits, labels, 1.0).double().sum()
        return total

    def forward_backward(
        self, hidden: Tensor, targets: Targets, tensors: HeadTensors, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the gradient of the hidden states.

        Args:
            hidden: ``[b, T, H]`` last boundary.
            targets: Supervised positions.
            tensors: Weights, and the sums that gradients are added to.
            scale: One over the supervised tokens of the whole batch.

        Returns:
            fp64 scalar (not scaled) and ``[b, T, H]``.
        """
        picked = hidden.flatten(0, 1)[targets.rows].requires_grad_()
        norm = [weight.detach().requires_grad_() for weight in tensors.norm]
        with torch.enable_grad():
            normed = self._normed(picked, norm)
        flat = normed.detach()
        grad_normed = torch.empty_like(flat)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for start in range(0, flat.shape[0], self._chunk):
            rows = slice(start, start + self._chunk)
            logits = self._logits[: flat[rows].shape[0]]
            torch.mm(flat[rows], tensors.projection.T, out=logits)
            losses = cross_entropy_(logits, targets.labels[rows], scale)
            total += losses.double().sum()
            torch.mm(logits, tensors.projection, out=grad_normed[rows])
            add_outer_(tensors.projection_sum, logits, flat[rows])
        grads = torch.autograd.grad(normed, [picked, *norm], grad_normed)
        for sum_, grad in zip(tensors.norm_sums, grads[1:], strict=True):
            sum_.add_(grad)
        grad_hidden = torch.zeros_like(hidden)
        grad_hidden.flatten(0, 1).index_copy_(0, targets.rows, grads[0])
        return total, grad_hidden
