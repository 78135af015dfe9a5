"""One run as a request that can travel into a process of its own, and its data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lazytrain.config import PipelineConfig, Purpose, RunRow
from lazytrain.data.batches import Batch, BatchStream, Position, batches
from lazytrain.data.filled import filled_batches
from lazytrain.data.packing import grouped_batches, packed_batches
from lazytrain.data.rows import Row, read_rows
from lazytrain.data.split import side_rows
from lazytrain.profile.hardware import settings_for
from lazytrain.records import Contract, SplitManifest, read

log = logging.getLogger(__name__)


class RunRequest(Contract):
    """Everything one run needs; travels as JSON into a process of its own."""

    row: RunRow
    config: PipelineConfig
    purpose: Literal["throughput", "quality"]
    split: Path
    rows: Path
    out: Path
    plan: Path | None = None
    save_every: int = Field(default=0, ge=0, description="0: save no checkpoint")
    keep_checkpoints: int = Field(default=2, ge=1)
    resume: str = Field(default="never", description="auto, never or a checkpoint")
    pack: bool = Field(default=False, description="several documents per row")
    group_by_length: bool = Field(default=False, description="like lengths together")

    @property
    def settings(self) -> Purpose:
        """Steps and learning rate of the purpose."""
        accelerator = settings_for(self.config, self.row.accelerator)
        return getattr(accelerator, self.purpose)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Data:
    """Training batches, held-out batches, and the manifest and rows they come from."""

    train: BatchStream
    held_out: Sequence[Batch]
    manifest: SplitManifest
    train_rows: Sequence[Row] = ()
    test_rows: Sequence[Row] = ()


def load_data(
    request: RunRequest, tokenizer: Any, start: Position | None = None
) -> Data:
    """Return seeded training batches and, for quality, held-out ones.

    A throughput run's rows are filled, and a packed one's are padded to ``seq_len``:
    each batch is then the same work.
    A resumed run goes on at ``start``.
    """
    rows = read_rows(request.rows)
    manifest = read(SplitManifest, request.split)
    is_quality = request.purpose == "quality"
    train_rows = side_rows(rows, manifest.train)
    train = training_batches(request, train_rows, tokenizer, start=start)
    test_rows = side_rows(rows, manifest.test)
    few = test_rows[: request.settings.eval_rows]
    held_out = _held_out(request, few, tokenizer) if is_quality else []
    return Data(train, held_out, manifest, train_rows, test_rows)


def training_batches(
    request: RunRequest, rows: Sequence[Row], tokenizer: Any, **options: Any
) -> BatchStream:
    """Return seeded batches as the request wants them: filled, packed, grouped, padded.

    Args:
        request: The run.
        rows: The rows to train on.
        tokenizer: Renders and tokenises rows.
        options: Passed on: ``start``, ``epochs``, ``keep_partial``.
    """
    make: Any = batches
    if request.purpose == "throughput" and not request.pack:
        make = filled_batches
        options["ahead"] = request.settings.num_steps
    else:
        options["allow_truncation"] = request.config.allow_truncation
        if request.group_by_length:
            make = grouped_batches
        elif request.pack:
            make = packed_batches
            options["pad_to"] = "max"
    stream: BatchStream = make(
        rows,
        tokenizer,
        batch=request.row.batch,
        seq_len=request.row.seq_len,
        seed=request.config.seed,
        **options,
    )
    return stream


def _held_out(
    request: RunRequest, rows: Sequence[Row], tokenizer: Any
) -> Sequence[Batch]:
    """Return the held-out rows as full batches; a plan knows one batch size only."""
    batch = request.row.batch
    if len(rows) < batch:
        log.warning("no evaluation loss: %d held-out rows fill no batch", len(rows))
        return []
    stream = batches(
        rows,
        tokenizer,
        batch=batch,
        seq_len=request.row.seq_len,
        seed=0,
        epochs=1,
        allow_truncation=request.config.allow_truncation,
    )
    return list(stream)
