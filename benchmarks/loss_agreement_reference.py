"""Plain autograd, beside which ``loss_agreement.py`` puts every system's losses."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lazytrain.baselines.initial import build_model
from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import IGNORE, Batch
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.state import TensorSlice


class Reference:
    """A plain model with fp32 masters, torch's clipping and torch's AdamW.

    Args:
        args: Learning rate, dtype and device.
        config: The model's configuration.
        micro_batch: Sequences of one forward and backward.
    """

    kernel = "torch.optim.AdamW"

    def __init__(self, args: argparse.Namespace, config: Any, micro_batch: int) -> None:
        self._device = torch.device(args.device)
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[args.dtype]
        model = build_model(config, 0, dtype, self._device)
        self._model = model.to(self._device).train()
        self._model.gradient_checkpointing_enable({"use_reentrant": False})
        self._micro_batch = micro_batch
        self._weights = [p for p in self._model.parameters() if p.requires_grad]
        self._masters = [torch.nn.Parameter(p.detach().float()) for p in self._weights]
        self._settings = OptimizerSettings()
        self._rate: float = args.learning_rate
        self._prepare()

    def _prepare(self) -> None:
        """Make the optimizer of the masters."""
        self._adamw = torch.optim.AdamW(
            self._masters,
            lr=self._rate,
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
        )

    def _update(self) -> None:
        """Update the masters from their gradients."""
        self._adamw.step()

    def step(self, batch: Batch) -> tuple[float, float]:
        """Run one step; return the mean loss before it and the gradient's norm."""
        for master in self._masters:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for start in range(0, batch.input_ids.shape[0], self._micro_batch):
            total += self._pass(batch, slice(start, start + self._micro_batch))
        limit = self._settings.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._masters, limit).item()
        self._update()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
        return total / batch.num_supervised, norm

    def _pass(self, batch: Batch, rows: slice) -> float:
        """Add one micro-batch's gradient; return its summed loss."""
        ids = batch.input_ids[rows].to(self._device)
        mask = batch.attention_mask[rows].to(self._device)
        labels = torch.full_like(ids, IGNORE)
        labels[:, :-1] = batch.labels[rows, 1:].to(self._device)
        logits: Tensor = self._model(
            input_ids=ids, attention_mask=mask, use_cache=False
        ).logits
        losses = cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        torch.autograd.backward(losses / batch.num_supervised)
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is not None and master.grad is not None:
                master.grad += weight.grad.float()
                weight.grad = None
        return losses.item()


class Reference8Bit(Reference):
    """The same with its moments in blocks of 8 bits, stepped by plain torch.

    It shows what the format alone does. The order of work, streaming and the compiled
    and vectorised kernels are those of the systems, not of this.
    """

    kernel = "lazytrain.optim.reference"

    def _prepare(self) -> None:
        self._adamw8 = HostAdamW(self._settings, torch.float32, "reference")
        self._steps = 0
        self._states = []
        for index, master in enumerate(self._masters):
            decay = self._settings.weight_decay
            piece = TensorSlice(str(index), 0, master.numel(), decay)
            flat = master.detach().view(-1)
            self._states.append(self._adamw8.new_state(flat, [piece], [True]))

    def _update(self) -> None:
        self._steps += 1
        for master, state in zip(self._masters, self._states, strict=True):
            gradient = torch.zeros_like(master) if master.grad is None else master.grad
            self._adamw8.update(
                state,
                gradient.view(-1),
                step=self._steps,
                learning_rate=self._rate,
                scale=1.0,
            )
