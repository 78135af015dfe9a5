"""Forward only: the loss of a batch under the current weights, streamed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lazytrain.data.batches import Batch
from lazytrain.executor.layers import Place
from lazytrain.executor.loss import targets_of
from lazytrain.executor.packing import Borders
from lazytrain.executor.step import Machinery
from lazytrain.executor.weights import Trip
from lazytrain.models.decoder import layer_part


class EvaluationRunner:
    """Runs a batch through all layers without keeping anything.

    Args:
        machinery: The engine's.
        trip: Uploads of one forward pass.
    """

    def __init__(self, machinery: Machinery, trip: Trip) -> None:
        self._m = machinery
        self._trip = trip

    def run(self, batch: Batch) -> Tensor:
        """Return the summed loss, fp64 scalar on the device."""
        m, device = self._m, self._m.streams.device
        m.runner.rotary = m.rotary.of(batch.input_ids.shape[1])
        rows = self._rows(batch)
        m.runner.conditions = m.conditions.of(
            m.runner.rotary, Borders.of(batch), batch.input_ids.shape[0], rows
        )
        table = self._arrive(0)
        weight = m.layouts["embedding"].views(table)[0]
        ids = batch.input_ids.to(device).split(rows)
        hidden = [F.embedding(part, weight) for part in ids]
        m.weights.finished(self._trip, 0)
        for layer in range(m.plan.num_layers):
            flat = self._arrive(layer + 1)
            place = self._place(layer, flat)
            hidden = [
                m.runner.replay(replace(place, micro_batch=n), part)
                for n, part in enumerate(hidden)
            ]
            m.weights.finished(self._trip, layer + 1)
        position = m.plan.num_layers + 1
        head = m.layouts["head"].views(self._arrive(position))
        norm, projection = (head, weight) if m.decoder.tied else (head[:-1], head[-1])
        total = torch.zeros((), dtype=torch.float64, device=device)
        for part, labels in zip(hidden, batch.labels.split(rows), strict=True):
            targets = targets_of(labels, device)
            total += m.head.evaluate(part, targets, norm, projection)
        m.weights.finished(self._trip, position)
        return total

    def _rows(self, batch: Batch) -> int:
        """Rows that pass a layer together: the plan's micro-batch."""
        return min(self._m.plan.groups[0].micro_batch, batch.input_ids.shape[0])

    def _arrive(self, position: int) -> Tensor:
        return self._m.weights.arrive(self._trip, position)

    def _place(self, layer: int, flat: Tensor) -> Place:
        part = layer_part(layer)
        whole = flat[: self._m.layouts[part].numel]
        kind = self._m.plan.layer_types[layer]
        return Place(layer, kind, part, "", 0, whole, whole, "inputs")
