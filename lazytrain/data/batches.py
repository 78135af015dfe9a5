"""Batches of token ids, padded on the right, shuffled by seed, resumable.

Right padding needs no attention mask under causal attention: a real token never looks
at what comes after it, and a padded position has no label.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lazytrain.data.prompts import IGNORE, Encoded, encode
from lazytrain.data.rows import Row
from lazytrain.errors import InvalidInput

__all__ = ["IGNORE", "Batch", "BatchStream", "Position", "batches", "collate"]

PadTo = Literal["longest", "max"]
MULTIPLE = 8  # padded lengths are multiples of this, which kernels like


@dataclass(frozen=True)
class Batch:
    """One optimizer step's rows.

    Attributes:
        input_ids: ``[B, T]`` int64 token ids.
        labels: ``[B, T]`` int64, not shifted; ``-100`` where no loss is taken.
        lengths: ``[B]`` int64, number of real tokens per row; the rest is padding.
        position_ids: ``[B, T]`` int64, restarting at each document of a packed row;
            None where every row is one document and positions are 0..T-1.
        documents: ``[B, T]`` int64, which document of its row a token belongs to, -1
            for padding; None where every row is one document.
    """

    input_ids: Tensor
    labels: Tensor
    lengths: Tensor
    position_ids: Tensor | None = None
    documents: Tensor | None = None

    @property
    def real_tokens(self) -> int:
        """Number of tokens that are not padding."""
        return int(self.lengths.sum())

    @property
    def padded_tokens(self) -> int:
        """Number of tokens including padding."""
        return self.input_ids.numel()

    @property
    def num_supervised(self) -> int:
        """Number of positions whose next token has a label."""
        return int((self.labels[:, 1:] != IGNORE).sum())

    @property
    def attention_mask(self) -> Tensor:
        """``[B, T]`` int64 mask as transformers wants it: 1 for real tokens."""
        positions = torch.arange(self.input_ids.shape[1])
        return (positions[None, :] < self.lengths[:, None]).long()


@dataclass(frozen=True)
class Position:
    """Where a stream of batches stands.

    Attributes:
        epoch: Which epoch's order rows are taken from.
        taken: How many rows of that order were taken.
        held: Ids of rows that were taken and wait for a batch, in their order.
    """

    epoch: int = 0
    taken: int = 0
    held: tuple[int, ...] = ()


def batches(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    batch: int,
    seq_len: int,
    seed: int,
    epochs: int | None = None,
    pad_to: PadTo = "longest",
    allow_truncation: bool = False,
    start: Position | None = None,
    keep_partial: bool = False,
) -> BatchStream:
    """Return a stream of batches; iterate it, read its counts, save its position.

    Args:
        rows: The rows to draw from; each epoch takes every row once, in its own order.
        tokenizer: Renders and tokenises rows.
        batch: Rows per batch.
        seq_len: Longest row in tokens.
        seed: Seed of the order.
        epochs: Passes over the rows; endless if None.
        pad_to: Pad to the batch's longest row (to a multiple of 8), or to ``seq_len``.
        allow_truncation: Cut rows over ``seq_len`` instead of dropping them.
        start: Where to go on, as :attr:`BatchStream.position` said.
        keep_partial: Also yield the last batch when rows run out, smaller than batch.

    Raises:
        InvalidInput: If the rows cannot fill one batch.
    """
    if batch < 1 or seq_len < 2:
        raise InvalidInput("batch, seq_len", (batch, seq_len), "need at least 1 and 2")
    if len(rows) < batch and not (keep_partial and rows):
        raise too_few(len(rows), batch, {})
    fit = Fit(seq_len, pad_to, allow_truncation)
    order = Order(seed, epochs, start or Position())
    return BatchStream(rows, tokenizer, batch, fit, order, keep_partial)


@dataclass(frozen=True)
class Fit:
    """How rows are brought to a length."""

    seq_len: int
    pad_to: PadTo = "longest"
    allow_truncation: bool = False


@dataclass(frozen=True)
class Order:
    """In which order rows come, for how long, and from where on."""

    seed: int
    epochs: int | None
    start: Position


class BatchStream:
    """An iterator of batches that counts what it drops and can be resumed.

    A batch may reach over the end of an epoch: the rows left join the next epoch's
    first rows, so no row is lost and every batch is full.

    Attributes:
        position: Where the next batch starts; resume with it.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch: int,
        fit: Fit,
        order: Order,
        keep_partial: bool,
    ) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._batch = batch
        self._fit = fit
        self._order = order
        self._keep_partial = keep_partial
        self._remarks: dict[int, str] = {}
        self.position = order.start
        self._iterator = self._run()

    def __iter__(self) -> BatchStream:
        """Return the stream itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        return next(self._iterator)

    @property
    def counts(self) -> dict[str, int]:
        """Rows dropped or cut so far, each once, by reason."""
        return dict(sorted(Counter(self._remarks.values()).items()))

    def _run(self) -> Iterator[Batch]:
        gathered: list[Encoded] = []
        after = self.position
        for encoded, after in self._usable(self._batch):
            gathered.append(encoded)
            if len(gathered) == self._batch:
                self.position = after
                yield self._collate(gathered)
                gathered = []
        if gathered and self._keep_partial:
            self.position = after
            yield self._collate(gathered)

    def _usable(self, needed: int) -> Iterator[tuple[Encoded, Position]]:
        """Yield rows that fit, each with the position after it, epoch by epoch.

        Raises:
            InvalidInput: If a whole epoch has fewer than ``needed`` such rows.
        """
        epoch, taken = self._order.start.epoch, self._order.start.taken
        while self._order.epochs is None or epoch < self._order.epochs:
            usable = 0
            order = epoch_order(self._rows, self._order.seed, epoch)
            for place, row in enumerate(order[taken:], start=taken + 1):
                encoded = self._encoded(row)
                if encoded is not None:
                    usable += 1
                    yield encoded, Position(epoch, place)
            least = 1 if self._keep_partial else needed
            if taken == 0 and usable < least:
                raise too_few(usable, self._batch, self.counts)
            epoch, taken = epoch + 1, 0

    def _held(self) -> list[Encoded]:
        """Return the rows that waited for a batch where the stream was left."""
        by_id = {row.row_id: row for row in self._rows}
        held = (self._encoded(by_id[row_id]) for row_id in self._order.start.held)
        return [row for row in held if row is not None]

    def _encoded(self, row: Row) -> Encoded | None:
        """Tokenise a row and fit it to the length; note why it is dropped or cut."""
        fitted, remark = fit_row(encode(row, self._tokenizer), self._fit)
        if remark is not None:
            self._remarks[row.row_id] = remark
        return fitted

    def _collate(self, rows: Sequence[Encoded]) -> Batch:
        return collate(rows, self._tokenizer.pad_token_id, self._fit)


def epoch_order(rows: Sequence[Row], seed: int, epoch: int) -> list[Row]:
    """Return the rows in the order of one epoch, by hashes of their ids alone."""

    def place(row: Row) -> bytes:
        return hashlib.sha256(f"{seed}:{epoch}:{row.row_id}".encode()).digest()

    return sorted(rows, key=place)


def fit_row(row: Encoded, fit: Fit) -> tuple[Encoded | None, str | None]:
    """Return a row that fits, or None, and a remark if it was cut or dropped."""
    remark = None
    if len(row.input_ids) > fit.seq_len:
        is_prompt = row.prompt_len >= fit.seq_len
        if not fit.allow_truncation:
            return None, "prompt too long" if is_prompt else "answer too long"
        row, remark = _cut(row, fit.seq_len), "truncated"
    if all(label == IGNORE for label in row.labels[1:]):
        return None, "nothing supervised"
    return row, remark


def _cut(row: Encoded, seq_len: int) -> Encoded:
    """Keep the prompt's end and the answer's start, at most half for the answer.

    A shorter prompt leaves its share to the answer, and the other way round.
    """
    prompt_len = row.prompt_len
    answer_len = len(row.input_ids) - prompt_len
    answer = min(answer_len, max(seq_len // 2, seq_len - prompt_len))
    start = prompt_len - min(prompt_len, seq_len - answer)
    end = prompt_len + answer
    return replace(
        row, input_ids=row.input_ids[start:end], labels=row.labels[start:end]
    )


def collate(rows: Sequence[Encoded], pad_token_id: int, fit: Fit) -> Batch:
    """Pad rows on the right into one batch ``[B, T]``."""
    lengths = [len(row.input_ids) for row in rows]
    width = fit.seq_len
    if fit.pad_to == "longest":
        width = min(width, -(-max(lengths) // MULTIPLE) * MULTIPLE)
    input_ids = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
    labels = torch.full((len(rows), width), IGNORE, dtype=torch.int64)
    for place, row in enumerate(rows):
        input_ids[place, : lengths[place]] = torch.tensor(row.input_ids)
        labels[place, : lengths[place]] = torch.tensor(row.labels)
    return Batch(input_ids, labels, torch.tensor(lengths))


def too_few(usable: int, batch: int, dropped: dict[str, int]) -> InvalidInput:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
    remedy = (
        f"only {usable} usable row(s), fewer than one batch"
        f"{f' ({reasons})' if reasons else ''}; lower the batch, raise seq_len or "
        "give more rows"
    )
    return InvalidInput("batch", batch, remedy)
