"""No offload at all: the whole model on the device, 8-bit AdamW, layers recomputed.

The paper leaves this rival out. It wins wherever it fits: nothing crosses a link. A
second row keeps every activation instead, at the smaller batch that this leaves room
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lazytrain.baselines.finished import FinishedStep, Stopwatch
from lazytrain.baselines.initial import build_model
from lazytrain.baselines.resident_body import forward_of
from lazytrain.baselines.resident_state import ResidentAdamW
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.executor.cross_entropy import cross_entropy_
from lazytrain.executor.protocol import Peaks, StepResult
from lazytrain.profile.memory import gpu_peak_bytes, host_peak_bytes
from lazytrain.profile.setup import EngineSetup


class ResidentEngine:
    """A plain model with a fused chunked loss and 8-bit moments, all on one device."""

    optimizer_state = "8bit"

    def __init__(self, setup: EngineSetup, *, recompute: bool = True) -> None:
        self._device = setup.device
        self._max_norm = setup.optimizer.max_grad_norm
        self._chunk = setup.executor.loss_chunk_tokens
        model = build_model(
            setup.model_config, setup.seed, setup.dtype, setup.device, setup.state_dict
        )
        self._model = model.to(setup.device).train()
        self._named = list(self._model.named_parameters())
        self.num_parameters = sum(p.numel() for _, p in self._named)
        self._adamw = ResidentAdamW(
            setup.optimizer, self._named, use_compiled=setup.device.type == "cuda"
        )
        self.master, self.kernel = self._adamw.master, self._adamw.kernel
        self._forward = forward_of(
            self._model, setup.executor.body, recompute=recompute
        )
        self._count = 0

    def _hidden(self, batch: Batch) -> Tensor:
        """Return the final normed states ``[B, T, H]``.

        Padding is on the right, where no labelled position looks.
        """
        return self._forward(batch.input_ids.to(self._device))

    def _labelled(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return indices of positions with a label, and their labels."""
        labels = torch.full_like(batch.labels, IGNORE)
        labels[:, :-1] = batch.labels[:, 1:]
        flat = labels.flatten()
        places = (flat != IGNORE).nonzero().flatten()
        return places.to(self._device), flat[places].to(self._device)

    def _loss(
        self, hidden: Tensor, batch: Batch, table_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the mean loss's gradient by hidden ``[B, T, H]``.

        The head's gradient is added to ``table_grad``, in fp32, where one is given.
        """
        table = self._model.lm_head.weight.detach()
        rows = hidden.detach().flatten(0, 1)
        gradient = torch.zeros_like(rows)
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        places, labels = self._labelled(batch)
        chunks = zip(
            torch.split(places, self._chunk),
            torch.split(labels, self._chunk),
            strict=True,
        )
        for where, targets in chunks:
            states = rows[where]
            logits = states @ table.T
            losses = cross_entropy_(logits, targets, 1.0 / batch.num_supervised)
            total += losses.sum()
            gradient[where] = logits @ table
            if table_grad is not None:
                table_grad += logits.T @ states
        return total, gradient.view_as(hidden)

    def train_step(self, batch: Batch, learning_rate: float) -> FinishedStep:
        """Run one step; the clip factor is read before the update."""
        watch = Stopwatch()
        if batch.num_supervised == 0:
            return FinishedStep(StepResult(0.0, None, skipped=True))
        self._model.zero_grad(set_to_none=True)
        head = self._model.lm_head.weight
        table_grad = torch.zeros(head.shape, dtype=torch.float32, device=self._device)
        hidden = self._hidden(batch)
        total, gradient = self._loss(hidden, batch, table_grad)
        torch.autograd.backward(hidden, gradient)
        head.grad = _added(head.grad, table_grad.to(head.dtype))
        del table_grad
        squares = torch.stack([_squares(p.grad) for _, p in self._named])
        norm = math.sqrt(squares.sum().item())
        loss = total.item() / batch.num_supervised
        watch.lap("forward_backward")
        if not (math.isfinite(norm) and math.isfinite(loss)):
            return FinishedStep(StepResult(loss, None, True, watch.laps))
        self._count += 1
        scale = min(1.0, self._max_norm / (norm + 1e-6))
        self._adamw.update(step=self._count, learning_rate=learning_rate, scale=scale)
        watch.lap("optimizer")
        return FinishedStep(StepResult(loss, norm, False, watch.laps))

    @torch.no_grad()
    def evaluate_loss(self, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of supervised tokens."""
        if batch.num_supervised == 0:
            return 0.0, 0
        total, _ = self._loss(self._hidden(batch), batch, None)
        return total.item(), batch.num_supervised

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield weights by Hugging Face name, on the host."""
        for name, parameter in self._named:
            yield name, parameter.detach().to("cpu", copy=True)

    def drain(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def peaks(self) -> Peaks:
        """Return peak memory."""
        return Peaks(gpu_peak_bytes(), host_peak_bytes())

    def close(self) -> None:
        """Nothing to stop: memory goes with the engine."""


def _added(gradient: Tensor | None, more: Tensor) -> Tensor:
    """Return the sum of a tied table's two gradients, or the only one."""
    return more if gradient is None else gradient.add_(more)


def _squares(gradient: Tensor | None) -> Tensor:
    """Return the fp32 sum of squares of a gradient; zero for an unused parameter."""
    if gradient is None:
        return torch.zeros(())
    squares: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
    return squares


def build(setup: EngineSetup) -> ResidentEngine:
    """Build the row ``resident``."""
    return ResidentEngine(setup)


def build_no_recompute(setup: EngineSetup) -> ResidentEngine:
    """Build the row ``resident-no-recompute``."""
    return ResidentEngine(setup, recompute=False)
