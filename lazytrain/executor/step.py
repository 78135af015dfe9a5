"""One step along the plan: forward, loss, backward, gradients on their way down.

A step is a row of waves. Layer-major groups pass as one wave, every layer over all of
the wave's micro-batches; batch-major groups pass as one wave per micro-batch, with
gradients summed on the device. Backward walks the blocks in reverse, fetches each
boundary from its home in time and reruns what the plan omitted, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lazytrain.data.batches import Batch
from lazytrain.executor.boundaries import BoundaryStore, WaveShape
from lazytrain.executor.gradients import GradientSums
from lazytrain.executor.itinerary import replayed_layers
from lazytrain.executor.layers import LayerRunner, Place
from lazytrain.executor.layout import Layout
from lazytrain.executor.loss import HeadLoss, HeadTensors, Targets, targets_of
from lazytrain.executor.packing import Borders, ConditionMaker
from lazytrain.executor.streams import Streams, Ticket
from lazytrain.executor.timeline import Timeline
from lazytrain.executor.weights import Trip, WeightStreamer
from lazytrain.models.decoder import EMBEDDING, HEAD, Decoder, layer_part
from lazytrain.schedule.plan import Block, Group, Plan


@dataclass(frozen=True)
class Machinery:
    """Everything a step uses; made once by the engine."""

    plan: Plan
    decoder: Decoder
    streams: Streams
    layouts: dict[str, Layout]
    weights: WeightStreamer
    boundaries: BoundaryStore
    runner: LayerRunner
    head: HeadLoss
    sums: GradientSums
    loss_sum: Tensor
    rotary: RotaryCache
    conditions: ConditionMaker


class RotaryCache:
    """Rotary cos and sin per sequence length, made once.

    Args:
        decoder: The model.
        device: Where they live.
        dtype: Their dtype.
    """

    def __init__(
        self, decoder: Decoder, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._decoder = decoder
        self._device = device
        self._dtype = dtype
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each ``[1, T, D]``."""
        if tokens not in self._tables:
            self._tables[tokens] = self._decoder.rotary(
                tokens, self._device, self._dtype
            )
        return self._tables[tokens]


@dataclass(frozen=True)
class Wave:
    """Rows of the batch that pass through the layers together."""

    group: Group
    shape: WaveShape
    ids: Tensor
    targets: list[Targets]
    borders: Borders | None = None

    def micro_batches(self) -> range:
        """Indices of the wave's micro-batches."""
        return range(self.shape.num_micro_batches)


def wave_rows(plan: Plan) -> list[tuple[Group, int, int]]:
    """Return each wave's group, first row and number of rows."""
    waves: list[tuple[Group, int, int]] = []
    row = 0
    for group in plan.groups:
        is_layer_major = group.order == "layer-major"
        rows = group.sequences if is_layer_major else group.micro_batch
        firsts = range(row, row + group.sequences, rows)
        waves.extend((group, first, rows) for first in firsts)
        row += group.sequences
    return waves


def cut_waves(
    plan: Plan, batch: Batch, hidden: int, device: torch.device
) -> list[Wave]:
    """Cut a batch into the plan's waves and send ids and targets to the device."""
    waves = []
    for group, first, rows in wave_rows(plan):
        part = slice(first, first + rows)
        ids, labels = batch.input_ids[part], batch.labels[part]
        shape = WaveShape(rows, group.micro_batch, ids.shape[1], hidden)
        targets = [targets_of(cut, device) for cut in labels.split(group.micro_batch)]
        if device.type == "cuda":
            ids = ids.pin_memory()
        sent = ids.to(device, non_blocking=True)
        waves.append(Wave(group, shape, sent, targets, Borders.of(batch, part)))
    return waves


class StepRunner:
    """Runs the compute of one step; weights and updates are others' work.

    Args:
        machinery: What it works with.
        trip: The step's uploads.
        name: Prefix of the step's tickets.
        timeline: Records where time goes.
        scale: One over the supervised tokens of the whole batch.
    """

    def __init__(
        self,
        machinery: Machinery,
        trip: Trip,
        name: str,
        timeline: Timeline,
        scale: float,
    ) -> None:
        self._m = machinery
        self._trip = trip
        self._name = name
        self._timeline = timeline
        self._scale = scale
        self._position = 0
        self._is_first_wave = True
        self._is_last_wave = False
        self._projection: Tensor | None = None
        # Gradients of the wave's hidden states, one per micro-batch. They live and die
        # on the compute stream, so the allocator may own them.
        self._hidden_grads: list[Tensor] = []
        self.gradients: dict[str, Ticket] = {}

    def run(self, waves: list[Wave]) -> None:
        """Run all waves of a step."""
        self._m.loss_sum.zero_()
        vocabulary = [EMBEDDING] if self._m.decoder.tied else [HEAD]
        for part in vocabulary:
            self._m.sums.zero(part)
        if self._m.decoder.tied:
            self._m.sums.zero(HEAD)
        for number, wave in enumerate(waves):
            self._is_first_wave = number == 0
            self._is_last_wave = number == len(waves) - 1
            self._m.boundaries.begin(wave.shape)
            self._set_conditions(wave)
            self._forward(wave)
            self._loss(wave)
            self._backward(wave)
        self._timeline.enter("end")

    def _set_conditions(self, wave: Wave) -> None:
        rotary = self._m.rotary.of(wave.shape.tokens)
        self._m.runner.rotary = rotary
        self._m.runner.conditions = self._m.conditions.of(
            rotary, wave.borders, wave.shape.rows, wave.shape.micro_batch
        )

    @contextlib.contextmanager
    def _visit(self, part: str, cause: str) -> Iterator[Tensor]:
        """Hold the next stop's weights for compute."""
        stop = self._trip.stops[self._position]
        assert stop.part == part, f"itinerary has {stop.part}, compute wants {part}"
        if stop.upload:
            gate = self._trip.gates.get(part)
            is_gated = stop.first and gate is not None and not gate.is_issued
            waiting = "exposed_optimizer" if is_gated else "exposed_h2d"
            self._timeline.enter(waiting, part)
        flat = self._m.weights.arrive(self._trip, self._position)
        self._timeline.enter(cause, part)
        yield flat
        self._m.weights.finished(self._trip, self._position)
        self._position += 1

    def _place(self, wave: Wave, layer: int, micro_batch: int, flat: Tensor) -> Place:
        part = layer_part(layer)
        return Place(
            layer,
            self._m.plan.layer_types[layer],
            part,
            f"boundary.{layer}",
            micro_batch,
            flat[: self._m.layouts[part].numel],
            self._m.boundaries.flat(layer),
            wave.group.save_level[layer],
        )

    def _forward(self, wave: Wave) -> None:
        boundaries = self._m.boundaries
        boundaries.open(0)
        with self._visit(EMBEDDING, "forward") as flat:
            table = self._m.layouts[EMBEDDING].views(flat)[0]
            if self._m.decoder.tied:
                self._projection = table
            for m, ids in enumerate(wave.ids.split(wave.shape.micro_batch)):
                boundaries.rows(0, m).copy_(F.embedding(ids, table))
        boundaries.produced(0)
        fused = {i for b in self._m.plan.blocks for i in self._fused_layers(b)}
        for layer in range(self._m.plan.num_layers):
            with self._visit(layer_part(layer), "forward") as flat:
                self._run_layer(wave, layer, flat, graph=layer not in fused)
            boundaries.produced(layer + 1)
            boundaries.passed(layer)

    def _fused_layers(self, block: Block) -> range:
        """Layers whose graphs are built in backward, all together."""
        is_fused = block.mode == "fused" and block.end > block.start + 1
        return range(block.start, block.end) if is_fused else range(0)

    def _run_layer(self, wave: Wave, layer: int, flat: Tensor, *, graph: bool) -> None:
        """Run one layer over the wave's micro-batches, into the next boundary."""
        boundaries, runner = self._m.boundaries, self._m.runner
        boundaries.open(layer + 1)
        for m in wave.micro_batches():
            place = self._place(wave, layer, m, flat)
            run = runner.forward if graph else runner.replay
            output = run(place, boundaries.rows(layer, m))
            boundaries.rows(layer + 1, m).copy_(output)

    def _loss(self, wave: Wave) -> None:
        last = self._m.plan.num_layers
        self._hidden_grads.clear()
        with self._visit(HEAD, "loss") as flat:
            tensors = self._head_tensors(flat)
            for m in wave.micro_batches():
                hidden = self._m.boundaries.rows(last, m)
                total, grad = self._m.head.forward_backward(
                    hidden, wave.targets[m], tensors, self._scale
                )
                self._m.loss_sum.add_(total)
                self._hidden_grads.append(grad)
        self._m.boundaries.release(last)
        if self._is_last_wave:
            self.gradients[HEAD] = self._m.sums.drain(HEAD, self._name)

    def _head_tensors(self, flat: Tensor) -> HeadTensors:
        weights = self._m.layouts[HEAD].views(flat)
        sums = self._m.sums.sums(HEAD)
        if self._m.decoder.tied:
            assert self._projection is not None
            total = self._m.sums.sums(EMBEDDING)[0]
            return HeadTensors(weights, self._projection, sums, total)
        return HeadTensors(weights[:-1], weights[-1], sums[:-1], sums[-1])

    def _backward(self, wave: Wave) -> None:
        blocks = list(reversed(self._m.plan.blocks))
        ahead = self._m.plan.read_ahead_blocks
        for number, block in enumerate(blocks):
            for coming in blocks[number : number + 1 + ahead]:
                self._m.boundaries.fetch_ahead(coming.start)
            self._timeline.enter("exposed_boundary", f"boundary.{block.start}")
            self._m.boundaries.arrive(block.start)
            self._block(wave, block)
        self._embedding_backward(wave)

    def _block(self, wave: Wave, block: Block) -> None:
        """Rerun a block's interior, then go back layer by layer."""
        is_fused = len(self._fused_layers(block)) > 0
        for layer in replayed_layers(block):
            with self._visit(layer_part(layer), "recompute") as flat:
                if is_fused:
                    self._run_with_graph(wave, layer, flat, block)
                else:
                    self._run_layer(wave, layer, flat, graph=False)
        for layer in reversed(range(block.start, block.end)):
            with self._visit(layer_part(layer), "backward") as flat:
                self._layer_backward(wave, layer, flat)
            self._m.boundaries.release(layer)
            if self._is_last_wave:
                part = layer_part(layer)
                self.gradients[part] = self._m.sums.drain(part, self._name)

    def _run_with_graph(
        self, wave: Wave, layer: int, flat: Tensor, block: Block
    ) -> None:
        """Run a fused block's layer forward with its graph kept."""
        boundaries = self._m.boundaries
        is_inner = layer + 1 < block.end
        if is_inner:
            boundaries.open(layer + 1)
        for m in wave.micro_batches():
            place = self._place(wave, layer, m, flat)
            output = self._m.runner.forward_with_graph(place, boundaries.rows(layer, m))
            if is_inner:
                boundaries.rows(layer + 1, m).copy_(output)

    def _layer_backward(self, wave: Wave, layer: int, flat: Tensor) -> None:
        for m in wave.micro_batches():
            place = self._place(wave, layer, m, flat)
            hidden = self._m.boundaries.rows(layer, m)
            self._hidden_grads[m], grads = self._m.runner.backward(
                place, hidden, self._hidden_grads[m]
            )
            first = self._is_first_wave and m == 0
            self._m.sums.add(layer_part(layer), grads, first=first)

    def _embedding_backward(self, wave: Wave) -> None:
        """Add each row of the hidden gradient to its token's sum, in fp32."""
        self._timeline.enter("backward", EMBEDDING)
        if self._is_first_wave and not self._m.decoder.tied:
            self._m.sums.zero(EMBEDDING)
        total = self._m.sums.sums(EMBEDDING)[0]
        for m, ids in enumerate(wave.ids.split(wave.shape.micro_batch)):
            grad = self._hidden_grads[m].flatten(0, 1).float()
            total.index_add_(0, ids.flatten(), grad)
        if self._is_last_wave:
            self.gradients[EMBEDDING] = self._m.sums.drain(EMBEDDING, self._name)
