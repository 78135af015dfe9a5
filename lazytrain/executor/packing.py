"""What layers need besides hidden states: rotary tables and masks, by micro-batch.

Plain rows share one rotary table and need no mask: causal attention never sees the
padding on the right. Packed rows hold several documents: each keeps its own positions,
attention stops at its borders, and linear attention starts anew. Layers with a sliding
window shorter than the rows get the window's mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.data.batches import Batch
from lazytrain.errors import InvalidInput
from lazytrain.models.decoder import Decoder
from lazytrain.models.families import attention_mask, window_of


@dataclass(frozen=True)
class Borders:
    """Where documents lie in packed rows, on the host.

    Attributes:
        positions: ``[b, T]`` int64, restarting at each document.
        documents: ``[b, T]`` int64, which document of its row a token belongs to.
    """

    positions: Tensor
    documents: Tensor

    @staticmethod
    def of(batch: Batch, rows: slice = slice(None)) -> Borders | None:
        """Return the borders of some rows; None if the batch is not packed.

        Raises:
            InvalidInput: If only one of positions and documents is there.
        """
        if batch.documents is None and batch.position_ids is None:
            return None
        if batch.documents is None or batch.position_ids is None:
            missing = "documents" if batch.documents is None else "position_ids"
            raise InvalidInput(
                missing, None, "packed rows need positions and documents"
            )
        return Borders(batch.position_ids[rows], batch.documents[rows])

    def to(self, device: torch.device) -> Borders:
        """Return a copy on the device, without waiting for it."""
        if device.type != "cuda":
            return self
        positions, documents = (
            tensor.contiguous().pin_memory().to(device, non_blocking=True)
            for tensor in (self.positions, self.documents)
        )
        return Borders(positions, documents)


@dataclass(frozen=True)
class Conditions:
    """One micro-batch's rotary tables and masks.

    Attributes:
        cos: ``[1, T, D]``, or ``[b, T, D]`` where rows have positions of their own.
        sin: Like cos.
        masks: By layer type. Attention: bool ``[1 or b, 1, T, T]``, True where a token
            (row) may look at another (column). Linear attention: int64 ``[b, T]``,
            positions within the document. None: causal alone.
    """

    cos: Tensor
    sin: Tensor
    masks: Mapping[str, Tensor | None]


class ConditionMaker:
    """Makes the conditions of waves.

    Args:
        decoder: The model.
        device: Where they live.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        kinds = dict.fromkeys(decoder.layer_types)
        self._windows = {kind: window_of(decoder.config, kind) for kind in kinds}
        self._device = device

    def of(
        self,
        rotary: tuple[Tensor, Tensor],
        borders: Borders | None,
        rows: int,
        micro_batch: int,
    ) -> list[Conditions] | None:
        """Return one per micro-batch, or None where all share the rotary table alone.

        Args:
            rotary: cos and sin of positions 0..T-1, each ``[1, T, D]``.
            borders: Of the wave's rows, if they are packed.
            rows: Rows of the wave.
            micro_batch: Rows per pass over a layer.
        """
        if borders is not None:
            return self._packed(rotary, borders.to(self._device), micro_batch)
        masks = self._masks(rotary[0].shape[1], None)
        if all(mask is None for mask in masks.values()):
            return None
        return [Conditions(*rotary, masks)] * -(-rows // micro_batch)

    def _packed(
        self, rotary: tuple[Tensor, Tensor], borders: Borders, micro_batch: int
    ) -> list[Conditions]:
        cos, sin = (table[0] for table in rotary)
        parts = zip(
            borders.positions.split(micro_batch),
            borders.documents.split(micro_batch),
            strict=True,
        )
        return [
            Conditions(
                cos[positions],
                sin[positions],
                self._masks(cos.shape[0], Borders(positions, documents)),
            )
            for positions, documents in parts
        ]

    def _masks(self, tokens: int, borders: Borders | None) -> dict[str, Tensor | None]:
        documents = None if borders is None else borders.documents
        masks: dict[str, Tensor | None] = {}
        for kind, window in self._windows.items():
            if kind == "linear_attention":
                masks[kind] = None if borders is None else borders.positions
            else:
                masks[kind] = attention_mask(documents, tokens, window, self._device)
        return masks
