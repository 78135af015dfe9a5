"""Embedding, final norm and head of a layer-streaming rival, and its loss.

The loss is chunked for speed but keeps the logits of every chunk until one backward:
the full logits live on the device, as they do in the system this stands for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lazytrain.baselines.host_parts import HostPart, views_of
from lazytrain.baselines.slots import bind
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.models.decoder import Decoder


class OuterParts:
    """The parts that stay on the device; refreshed from the host at each step."""

    def __init__(
        self,
        decoder: Decoder,
        embedding: HostPart,
        head: HostPart,
        device: torch.device,
    ) -> None:
        self._hosts = (embedding, head)
        self._device = device
        self._weights = [
            torch.zeros_like(h.weights, device=device) for h in self._hosts
        ]
        self._grads = [torch.zeros_like(weight) for weight in self._weights]
        self._table = views_of(embedding.shape, self._weights[0])["weight"]
        self._table_grad = views_of(embedding.shape, self._grads[0])["weight"]
        values = views_of(head.shape, self._weights[1])
        grads = views_of(head.shape, self._grads[1])
        # Tied: the head projects with the embedding's table, and both add to its grad.
        self._head = values.pop("lm_head.weight", self._table)
        self._head_grad = grads.pop("lm_head.weight", self._table_grad)
        self._norm = decoder.norm()
        prefix = "model.norm."
        bind(
            self._norm,
            {name.removeprefix(prefix): view for name, view in values.items()},
            {name.removeprefix(prefix): view for name, view in grads.items()},
        )

    def upload(self) -> None:
        """Copy the weights from the host and zero the gradients."""
        for host, weight, gradient in zip(
            self._hosts, self._weights, self._grads, strict=True
        ):
            weight.copy_(host.weights, non_blocking=True)
            gradient.zero_()

    def download(self) -> None:
        """Copy the gradients to the host."""
        for host, gradient in zip(self._hosts, self._grads, strict=True):
            host.gradient.copy_(gradient, non_blocking=True)

    def embed(self, ids: Tensor) -> Tensor:
        """Return hidden states ``[B, T, H]`` of token ids ``[B, T]``."""
        return functional.embedding(ids, self._table)

    def embedding_backward(self, ids: Tensor, gradient: Tensor) -> None:
        """Add the embedding's share to the table's gradient.

        The rows of a token are summed in fp32, as autograd's kernel does on a GPU. One
        by one into bf16, a sum stops growing after some 256 of them, and a token of a
        large batch occurs more often than that.
        """
        tokens, place = ids.flatten().unique(return_inverse=True)
        rows = gradient.flatten(0, 1).float()
        sums = rows.new_zeros(tokens.numel(), rows.shape[1])
        sums.index_add_(0, place, rows)
        self._table_grad.index_add_(0, tokens, sums.to(self._table_grad.dtype))

    def _chunks(
        self, hidden: Tensor, batch: Batch, size: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Return (states, targets) chunks of positions whose next token exists."""
        states = torch.split(hidden[:, :-1].flatten(0, 1), size)
        labels = batch.labels[:, 1:].flatten().to(self._device)
        targets = torch.split(labels, size)
        return list(zip(states, targets, strict=True))

    def _chunk_loss(self, states: Tensor, targets: Tensor, head: Tensor) -> Tensor:
        # In the run's dtype, as the system does: in bf16, the log-probabilities that
        # are kept until the backward take two bytes each.
        losses = functional.cross_entropy(
            functional.linear(self._norm(states), head),
            targets,
            ignore_index=IGNORE,
            reduction="none",
        )
        return losses.float().sum()

    def loss(
        self, hidden: Tensor, batch: Batch, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss and its gradient by the last boundary ``[B, T, H]``."""
        entry = hidden.detach().requires_grad_()
        head = self._head.detach().requires_grad_()
        losses = [
            self._chunk_loss(states, targets, head)
            for states, targets in self._chunks(entry, batch, chunk_tokens)
        ]
        mean = torch.stack(losses).sum() / batch.num_supervised
        torch.autograd.backward(mean)
        if head.grad is None or entry.grad is None:
            raise RuntimeError("the loss does not depend on head or hidden states")
        self._head_grad += head.grad
        return mean.detach(), entry.grad

    def summed_loss(self, hidden: Tensor, batch: Batch, chunk_tokens: int) -> Tensor:
        """Return the loss summed over supervised tokens, without a graph."""
        chunks = self._chunks(hidden, batch, chunk_tokens)
        losses = [self._chunk_loss(s, t, self._head) for s, t in chunks]
        return torch.stack(losses).sum()
