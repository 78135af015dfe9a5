"""The native kernels behind ctypes: plain C structures, no torch headers.

ctypes releases the GIL for the whole call. The library is built once by
:mod:`lazytrain.optim.build`; without a compiler :func:`library` is None and callers
take the torch reference.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.optim import build
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.masters import rounding_key
from lazytrain.optim.state import BLOCK, PartState, TensorSlice, num_blocks

ISAS: Final = ("scalar", "avx2", "avx512")
_MASTERS: Final = ("fp32", "fp32-split", "bf16", "bf16-stochastic")
_GRADIENTS: Final = (torch.bfloat16, torch.float32)
_log = logging.getLogger(__name__)


class _Slice(ctypes.Structure):
    """``lt_slice`` of csrc/interface.h."""

    _fields_ = [
        ("offset", ctypes.c_int64),
        ("numel", ctypes.c_int64),
        ("state_offset", ctypes.c_int64),
        ("scale_offset", ctypes.c_int64),
        ("keep", ctypes.c_float),
        ("eight_bit", ctypes.c_int32),
    ]


class _Job(ctypes.Structure):
    """``lt_job`` of csrc/interface.h."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                "weight",
                "remainder",
                "gradient",
                "exp_avg",
                "exp_avg_sq",
                "exp_avg_code",
                "exp_avg_sq_code",
                "exp_avg_scale",
                "exp_avg_sq_scale",
                "slices",
            )
        ),
        ("num_slices", ctypes.c_int64),
        *(
            (name, ctypes.c_float)
            for name in (
                "beta1",
                "one_minus_beta1",
                "beta2",
                "one_minus_beta2",
                "eps",
                "step_size",
                "root_bias_correction2",
                "scale",
            )
        ),
        ("key", ctypes.c_uint32),
        *(
            (name, ctypes.c_int32)
            for name in ("master", "gradient_is_fp32", "threads", "isa")
        ),
    ]


def takes(gradient: Tensor) -> bool:
    """Return whether the kernels can read this gradient: host, dense, bf16 or fp32."""
    return (
        gradient.device.type == "cpu"
        and gradient.dtype in _GRADIENTS
        and gradient.is_contiguous()
    )


def default_threads() -> int:
    """Return the cores this process may use: pinning is respected."""
    return len(os.sched_getaffinity(0))


def _plain_slices(slices: Sequence[TensorSlice]) -> ctypes.Array[_Slice]:
    """Return slices without moments, for reductions."""
    return (_Slice * len(slices))(
        *(_Slice(piece.offset, piece.numel, 0, 0, 1.0, 0) for piece in slices)
    )


def _placed_slices(state: PartState, constants: StepConstants) -> ctypes.Array[_Slice]:
    """Return a state's slices with their placements and decay factors."""
    return (_Slice * len(state.slices))(
        *(
            _Slice(
                piece.offset,
                piece.numel,
                spot.state_offset,
                spot.scale_offset,
                constants.keep(piece.weight_decay),
                spot.is_eight_bit,
            )
            for piece, spot in state.placed()
        )
    )


def _job(
    state: PartState,
    gradient: Tensor,
    constants: StepConstants,
    slices: ctypes.Array[_Slice],
) -> _Job:
    """Fill the structure of one update, but for threads and instruction set."""
    job = _Job(
        weight=state.weight.data_ptr(),
        gradient=gradient.data_ptr(),
        slices=ctypes.addressof(slices),
        num_slices=len(slices),
        beta1=constants.beta1,
        one_minus_beta1=1 - constants.beta1,
        beta2=constants.beta2,
        one_minus_beta2=1 - constants.beta2,
        eps=constants.eps,
        step_size=constants.step_size,
        root_bias_correction2=constants.root_bias_correction2,
        scale=constants.scale,
        key=rounding_key(constants.step, state.salt),
        master=_MASTERS.index(state.master),
        gradient_is_fp32=gradient.dtype == torch.float32,
    )
    for name, tensor in state.tensors().items():
        setattr(job, name, tensor.data_ptr())
    return job


@dataclass(frozen=True)
class Library:
    """A loaded kernel library; every call may run beside other Python threads."""

    handle: ctypes.CDLL

    @property
    def best_isa(self) -> str:
        """The widest instruction set that this machine runs."""
        return ISAS[self.handle.lt_best_isa()]

    def check_isa(self, name: str) -> int:
        """Return the number of an instruction set, refusing what would fault."""
        if name not in ISAS or ISAS.index(name) > self.handle.lt_best_isa():
            raise InvalidInput(
                "kernel", name, f"this machine runs up to {self.best_isa}"
            )
        return ISAS.index(name)

    def update(
        self,
        state: PartState,
        gradient: Tensor,
        constants: StepConstants,
        *,
        threads: int,
        isa: str,
    ) -> None:
        """Update a part in one pass over memory; the GIL is released."""
        slices = _placed_slices(state, constants)
        job = _job(state, gradient, constants, slices)
        job.threads = threads or default_threads()
        job.isa = self.check_isa(isa)
        self.handle.lt_adamw(ctypes.byref(job))

    def square_sums(
        self,
        gradient: Tensor,
        slices: Sequence[TensorSlice],
        threads: int,
        isa: str | None = None,
    ) -> Tensor:
        """Return fp32 sums of squares, the same bits for any number of threads."""
        sums = torch.empty(len(slices), dtype=torch.float32)
        self.handle.lt_square_sums(
            ctypes.c_void_p(gradient.data_ptr()),
            ctypes.c_int32(gradient.dtype == torch.float32),
            _plain_slices(slices),
            ctypes.c_int64(len(slices)),
            ctypes.c_int32(threads or default_threads()),
            ctypes.c_int32(self.check_isa(isa or self.best_isa)),
            ctypes.c_void_p(sums.data_ptr()),
        )
        return sums

    def triad(self, arrays: Sequence[Tensor], *, threads: int, streaming: bool) -> None:
        """Run STREAM's triad on three aligned fp32 tensors, the first as target."""
        self.handle.lt_triad(
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in arrays),
            ctypes.c_int64(arrays[0].numel()),
            ctypes.c_int32(threads or default_threads()),
            ctypes.c_int32(streaming),
        )

    def encode(
        self, values: Tensor, is_signed: bool, isa: str
    ) -> tuple[Tensor, Tensor]:
        """Quantise a flat fp32 tensor: codes, and one scale per block."""
        values = values.contiguous()
        codes = torch.empty(values.numel(), dtype=torch.uint8)
        scales = torch.empty(num_blocks(values.numel()), dtype=torch.float32)
        for first in range(0, values.numel(), BLOCK):
            self.handle.lt_encode(
                ctypes.c_void_p(values.data_ptr() + 4 * first),
                ctypes.c_int64(min(BLOCK, values.numel() - first)),
                ctypes.c_int32(is_signed),
                ctypes.c_int32(self.check_isa(isa)),
                ctypes.c_void_p(codes.data_ptr() + first),
                ctypes.c_void_p(scales.data_ptr() + 4 * (first // BLOCK)),
            )
        return codes, scales

    def decode(self, codes: Tensor, scale: float, is_signed: bool, isa: str) -> Tensor:
        """Return the values of at most one block of codes."""
        values = torch.empty(codes.numel(), dtype=torch.float32)
        self.handle.lt_decode(
            ctypes.c_void_p(codes.contiguous().data_ptr()),
            ctypes.c_int64(codes.numel()),
            ctypes.c_float(scale),
            ctypes.c_int32(is_signed),
            ctypes.c_int32(self.check_isa(isa)),
            ctypes.c_void_p(values.data_ptr()),
        )
        return values


def load(path: Path) -> Library:
    """Load a built library."""
    handle = ctypes.CDLL(str(path))
    for name in ("lt_adamw", "lt_square_sums", "lt_triad", "lt_encode", "lt_decode"):
        getattr(handle, name).restype = None
    handle.lt_best_isa.restype = ctypes.c_int32
    return Library(handle)


@cache
def library() -> Library | None:
    """Return the kernels, building them at the first call; None if that fails."""
    try:
        return load(build.ensure())
    except build.BuildFailed as error:
        _log.warning("native optimizer kernels are not available: %s", error)
        return None
