"""Whether measured layers ran as another sheet id's rows would run them. Without torch.

A layer's cost depends on the device, the model and how much goes through it at a time,
on neither cap nor host memory. A card under a small cap runs fewer tokens at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from lazytrain.config import PipelineConfig, RunRow, largest_row
from lazytrain.profile.accelerator import base_of
from lazytrain.records import LayerProfile
from lazytrain.schedule.execution import micro_batch, settings_of


class Way(NamedTuple):
    """How layers are run: ``tokens`` go through one at a time."""

    model: str
    seq_len: int
    tokens: int
    dtype: str
    body: str


def way_of(measured: LayerProfile) -> Way:
    """Return how a profile's layers were run."""
    sizes = (measured.model, measured.seq_len, measured.tokens)
    return Way(*sizes, measured.dtype, measured.body)


def way_for(
    rows: list[RunRow], accelerator: str, scale: str, config: PipelineConfig
) -> Way:
    """Return how the rows of a scale run a layer: that of the largest batch.

    Raises:
        InvalidInput: If the sheet has no such rows, or the id no settings.
    """
    row = largest_row(rows, accelerator, scale)
    settings = settings_of(config, row).executor
    together = micro_batch(row.batch, row.seq_len, settings.micro_batch_tokens)
    tokens = row.seq_len * together
    return Way(row.model, row.seq_len, tokens, settings.dtype, settings.body)


def is_same_device(measured: LayerProfile, accelerator: str) -> bool:
    """Whether a profile was measured on the card that a sheet id names."""
    return base_of(measured.accelerator) == base_of(accelerator)
