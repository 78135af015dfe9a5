"""Less padding: several documents in one row, or rows of like length in one batch.

A packed row carries its borders: positions restart and every token names its document,
so that attention (and a linear layer's state) can be reset there. No document is ever
cut. Both streams are seeded, lose no row, and resume exactly where they were left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.data.batches import (
    IGNORE,
    MULTIPLE,
    Batch,
    BatchStream,
    Fit,
    Order,
    PadTo,
    Position,
)
from lazytrain.data.prompts import Encoded
from lazytrain.data.rows import Row
from lazytrain.errors import InvalidInput

LOOK_AHEAD: Final = 8  # documents per row that may wait for a better place
WINDOW: Final = 32  # batches over which rows are sorted by length


def packed_batches(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    batch: int,
    seq_len: int,
    seed: int,
    epochs: int | None = None,
    pad_to: PadTo = "max",
    allow_truncation: bool = False,
    start: Position | None = None,
    keep_partial: bool = False,
) -> PackedStream:
    """Return batches of ``batch`` rows, each packed with documents to ``seq_len``.

    The arguments are those of :func:`lazytrain.data.batches.batches`.

    Raises:
        InvalidInput: If there is no row, or sizes are impossible.
    """
    _check(rows, batch, seq_len)
    fit = Fit(seq_len, pad_to, allow_truncation)
    order = Order(seed, epochs, start or Position())
    return PackedStream(rows, tokenizer, batch, fit, order, keep_partial)


def grouped_batches(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    batch: int,
    seq_len: int,
    seed: int,
    epochs: int | None = None,
    allow_truncation: bool = False,
    start: Position | None = None,
    keep_partial: bool = False,
) -> GroupedStream:
    """Return batches of rows of like length, in a shuffled order.

    The arguments are those of :func:`lazytrain.data.batches.batches`.

    Raises:
        InvalidInput: If there is no row, or sizes are impossible.
    """
    _check(rows, batch, seq_len)
    fit = Fit(seq_len, "longest", allow_truncation)
    order = Order(seed, epochs, start or Position())
    return GroupedStream(rows, tokenizer, batch, fit, order, keep_partial)


def _check(rows: Sequence[Row], batch: int, seq_len: int) -> None:
    if batch < 1 or seq_len < 2:
        raise InvalidInput("batch, seq_len", (batch, seq_len), "need at least 1 and 2")
    if not rows:
        raise InvalidInput("rows", 0, "there are no rows to make batches of")


class Bins:
    """A batch's rows while documents are put into them."""

    def __init__(self, count: int, capacity: int) -> None:
        self.rows: list[list[Encoded]] = [[] for _ in range(count)]
        self._free = [capacity] * count

    def place(self, document: Encoded) -> bool:
        """Put a document where the least space stays free; False if it fits nowhere."""
        size = len(document.input_ids)
        fitting = [n for n, free in enumerate(self._free) if free >= size]
        if not fitting:
            return False
        best = min(fitting, key=lambda n: (self._free[n], n))
        self.rows[best].append(document)
        self._free[best] -= size
        return True


class PackedStream(BatchStream):
    """A stream of packed batches; documents that fit nowhere open the next batch."""

    def _run(self) -> Iterator[Batch]:
        waiting = self._held()
        source = self._usable(1)
        after = self._order.start
        while True:
            bins = Bins(self._batch, self._fit.seq_len)
            waiting = [document for document in waiting if not bins.place(document)]
            is_over = False
            while len(waiting) < LOOK_AHEAD * self._batch and not is_over:
                document, after = next(source, (None, after))
                is_over = document is None
                if document is not None and not bins.place(document):
                    waiting.append(document)
            rows = [row for row in bins.rows if row]
            if not rows or (len(rows) < self._batch and not self._keep_partial):
                return
            held = tuple(document.row_id for document in waiting)
            self.position = replace(after, held=held)
            yield collate_packed(rows, self._tokenizer.pad_token_id, self._fit)


class GroupedStream(BatchStream):
    """A stream of batches of like length, sorted within a window of batches."""

    def _run(self) -> Iterator[Batch]:
        waiting = self._held()
        source = self._usable(self._batch)
        after = self._order.start
        while True:
            if len(waiting) < self._batch:
                # What a window left over goes into the next one.
                taken = list(islice(source, WINDOW * self._batch - len(waiting)))
                after = taken[-1][1] if taken else after
                waiting = self._arranged(waiting + [row for row, _ in taken])
            if len(waiting) < self._batch and not (waiting and self._keep_partial):
                return
            rows, waiting = waiting[: self._batch], waiting[self._batch :]
            held = tuple(document.row_id for document in waiting)
            self.position = replace(after, held=held)
            yield self._collate(rows)

    def _arranged(self, rows: list[Encoded]) -> list[Encoded]:
        """Sort rows by length, cut them into batches, and shuffle the batches."""
        ordered = sorted(rows, key=lambda row: (len(row.input_ids), row.row_id))
        size = self._batch
        groups = [ordered[n : n + size] for n in range(0, len(ordered), size)]

        def place(group: list[Encoded]) -> tuple[bool, bytes]:
            key = f"{self._order.seed}:{[row.row_id for row in group]}"
            return len(group) < size, hashlib.sha256(key.encode()).digest()

        return [row for group in sorted(groups, key=place) for row in group]


def collate_packed(
    rows: Sequence[Sequence[Encoded]], pad_token_id: int, fit: Fit
) -> Batch:
    """Put documents one after the other into rows ``[B, T]``, with their borders.

    A document's first token has no label: no token of its own comes before it.
    """
    lengths = [sum(len(document.input_ids) for document in row) for row in rows]
    width = fit.seq_len
    if fit.pad_to == "longest":
        width = min(width, -(-max(lengths) // MULTIPLE) * MULTIPLE)
    shape = (len(rows), width)
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    labels = torch.full(shape, IGNORE, dtype=torch.int64)
    position_ids = torch.zeros(shape, dtype=torch.int64)
    documents = torch.full(shape, -1, dtype=torch.int64)
    for place, row in enumerate(rows):
        start = 0
        for number, document in enumerate(row):
            end = start + len(document.input_ids)
            input_ids[place, start:end] = torch.tensor(document.input_ids)
            labels[place, start:end] = torch.tensor(document.labels)
            labels[place, start] = IGNORE
            position_ids[place, start:end] = torch.arange(end - start)
            documents[place, start:end] = number
            start = end
        position_ids[place, start:] = torch.arange(width - start)
    return Batch(input_ids, labels, torch.tensor(lengths), position_ids, documents)


def cu_seq_lens(batch: Batch) -> Tensor:
    """Return where documents start in the flattened batch, int32, with the end.

    This is what varlen attention and gated delta-rule kernels take. A row's padding is
    a document of its own, so that the last value is ``B * T``.
    """
    if batch.documents is None:
        raise InvalidInput("documents", None, "the batch is not packed")
    num_rows, width = batch.documents.shape
    is_start = torch.ones((num_rows, width), dtype=torch.bool)
    is_start[:, 1:] = batch.documents[:, 1:] != batch.documents[:, :-1]
    starts = is_start.flatten().nonzero().flatten()
    return torch.cat([starts, torch.tensor([num_rows * width])]).to(torch.int32)
