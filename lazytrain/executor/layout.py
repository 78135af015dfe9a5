"""How a part's tensors lie in one flat buffer.

Weights, gradients and sums of a part share one layout, counted in elements, so a layer
crosses the link in one copy. Every tensor starts on 256 bytes: compiled code guards on
alignment, and a differently aligned view would compile again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lazytrain.models.decoder import PartShape

ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Field:
    """One tensor inside a flat buffer; offset and numel in elements."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int

    @property
    def end(self) -> int:
        """Element behind the tensor's last one."""
        return self.offset + self.numel


@dataclass(frozen=True)
class Layout:
    """All fields of a part, and the length of its flat buffer in elements."""

    fields: tuple[Field, ...]
    numel: int

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]], itemsize: int) -> Layout:
        """Lay tensors out one after another, each aligned to 256 bytes."""
        step = ALIGNMENT_BYTES // itemsize
        fields, end = [], 0
        for name, shape in shapes.items():
            numel = math.prod(shape)
            fields.append(Field(name, shape, end, numel))
            end = -(-(end + numel) // step) * step
        return Layout(tuple(fields), end)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view per field of a flat buffer of at least ``numel``."""
        return [
            flat[field.offset : field.offset + field.numel].view(field.shape)
            for field in self.fields
        ]

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the views by local tensor name."""
        names = [field.name for field in self.fields]
        return dict(zip(names, self.views(flat), strict=True))


def part_layout(part: PartShape, dtype: torch.dtype) -> Layout:
    """Return the layout of a part in a dtype."""
    return Layout.of(part.tensors, dtype.itemsize)
