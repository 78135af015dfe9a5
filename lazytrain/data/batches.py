"""Batches of token ids, padded on the right.

Right padding needs no attention mask under causal attention: a real token never looks
at what comes after it, and a padded position has no label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE = -100  # the label that the loss skips, as in torch and transformers


@dataclass(frozen=True)
class Batch:
    """One optimizer step's rows.

    Attributes:
        input_ids: ``[B, T]`` int64 token ids.
        labels: ``[B, T]`` int64, not shifted; ``-100`` where no loss is taken.
        lengths: ``[B]`` int64, number of real tokens per row; the rest is padding.
    """

    input_ids: Tensor
    labels: Tensor
    lengths: Tensor

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
