"""Rows without padding, for measuring throughput.

Documents follow each other without a gap, from row to row of a batch; what is left of
the last one is not used, so that a batch begins where a resumed stream would. Every
token has a label. A padded row would flatter whoever skips what has no label, and
padding is one token over and over: matrix products on such rows draw less power and run
faster than training does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import torch

from lazytrain.data.batches import Batch, BatchStream, Fit, Order, Position, too_few
from lazytrain.data.rows import Row

MOST_AHEAD: Final = 32  # a throughput run has few steps
UNLIMITED: Final = 2**62  # documents are cut by the row, not by their own length


def filled_batches(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    batch: int,
    seq_len: int,
    seed: int,
    epochs: int | None = None,
    start: Position | None = None,
    ahead: int = 0,
) -> FilledStream:
    """Return batches ``[batch, seq_len]`` of real tokens, all of them supervised.

    Args:
        rows: The rows to draw from, in the seeded order of every other stream.
        tokenizer: Renders and tokenises rows.
        batch: Rows per batch.
        seq_len: Tokens per row.
        seed: Seed of the order.
        epochs: Passes over the rows; endless if None.
        start: Where to go on, as :attr:`BatchStream.position` said.
        ahead: Batches to make at once, ``MOST_AHEAD`` at most: a system that waits for
            each step would be charged for tokenising otherwise.

    Raises:
        InvalidInput: If there are fewer documents than rows of a batch.
    """
    fit = Fit(UNLIMITED)
    order = Order(seed, epochs, start or Position())
    if len(rows) < batch:
        raise too_few(len(rows), batch, {})
    few = min(ahead, MOST_AHEAD)
    return FilledStream(rows, tokenizer, batch, fit, order, seq_len, few)


class FilledStream(BatchStream):
    """A stream of batches without padding."""

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch: int,
        fit: Fit,
        order: Order,
        seq_len: int,
        ahead: int,
    ) -> None:
        self._seq_len = seq_len
        super().__init__(rows, tokenizer, batch, fit, order, keep_partial=False)
        made = self._made()
        self._batches = chain(list(islice(made, ahead)), made)
        self.position = order.start

    def __next__(self) -> Batch:
        """Return the next batch: one that is ready, or a new one."""
        batch, self.position = next(self._batches)
        return batch

    def _made(self) -> Iterator[tuple[Batch, Position]]:
        """Yield batches, each with the position behind it."""
        for batch in self._iterator:
            yield batch, self._after

    def _run(self) -> Iterator[Batch]:
        needed = self._batch * self._seq_len
        tokens: list[int] = []
        for document, after in self._usable(1):
            tokens += document.input_ids
            if len(tokens) >= needed:
                self._after = after
                yield self._filled(tokens[:needed])
                tokens = []

    def _filled(self, tokens: list[int]) -> Batch:
        ids = torch.tensor(tokens, dtype=torch.int64).view(self._batch, -1)
        return Batch(ids, ids.clone(), torch.full((self._batch,), self._seq_len))
