"""Parts, kernels and yardsticks shared by the optimizer's tests."""

from __future__ import annotations

import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.optim import native
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.state import PartState, TensorSlice

MASTERS = ("fp32-split", "bf16", "bf16-stochastic")


def native_isas() -> list[str]:
    library = native.library()
    assert library is not None, "the kernels must build where the tests run"
    return list(native.ISAS[: native.ISAS.index(library.best_isa) + 1])


def kernels() -> list[str]:
    return [*native_isas(), "reference"]


def two_slices(first: int = 5000, second: int = 100) -> tuple[int, list[TensorSlice]]:
    """A part of two tensors with gaps between and behind them."""
    start = -(-first // 128) * 128 + 128
    slices = [
        TensorSlice("weight", 0, first, 0.1),
        TensorSlice("bias", start, second, 0.0),
    ]
    return start + second + 28, slices


def covered(numel: int, slices: list[TensorSlice]) -> Tensor:
    mask = torch.zeros(numel, dtype=torch.bool)
    for piece in slices:
        mask[piece.offset : piece.offset + piece.numel] = True
    return mask


def ulp_distance(a: Tensor, b: Tensor, terms: Tensor | None = None) -> Tensor:
    """|a - b| in units of fp32 spacing at the largest of a, b and ``terms``.

    A sum that cancels is exact only to the spacing of its larger term.
    """
    largest = torch.maximum(a.abs(), b.float().abs())
    if terms is not None:
        largest = torch.maximum(largest, terms.abs())
    spacing = torch.nextafter(largest, torch.tensor(torch.inf)) - largest
    return (a.double() - b.double()).abs() / spacing.double()


def make(
    kernel: str,
    dtype: torch.dtype,
    eight_bit: bool,
    *,
    master: str = "fp32-split",
    seed: int = 0,
    sizes: tuple[int, int] = (5000, 100),
    **settings: object,
) -> tuple[HostAdamW, PartState]:
    """An optimizer and the state of a random part whose gaps are zero."""
    numel, slices = two_slices(*sizes)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(numel, generator=generator) * 0.02
    weight[~covered(numel, slices)] = 0
    optimizer = HostAdamW(
        OptimizerSettings(master=master, **settings), dtype, kernel=kernel
    )
    state = optimizer.new_state(weight.to(dtype), slices, [eight_bit] * 2)
    return optimizer, state


def gradient(state: PartState, seed: int, scale: float = 1e-3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numel = state.weight.numel()
    drawn = torch.randn(numel, generator=generator) * scale
    drawn[~covered(numel, list(state.slices))] = 0
    return drawn


def snapshot(state: PartState) -> dict[str, Tensor]:
    return {
        name: tensor.clone()
        for name, tensor in {**state.tensors(), "weight": state.weight}.items()
    }


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    def raw(tensor: Tensor) -> Tensor:
        return tensor.contiguous().view(torch.uint8)

    return a.keys() == b.keys() and all(torch.equal(raw(a[k]), raw(b[k])) for k in a)
