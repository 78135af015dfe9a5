"""AdamW on flat parts in host memory: allocates state, runs one kernel per part.

Three kinds of kernel stand behind one call: the native ones (``avx512``, ``avx2``,
``scalar``), the torch ``reference``, and ``deepspeed`` for comparison. ``kernel`` says
which one runs and belongs in every record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim import deepspeed, native, reference
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.pages import zeros
from lazytrain.optim.state import (
    Master,
    PartState,
    TensorSlice,
    check_slices,
    new_moments,
    place,
    salt_of,
)

KERNELS: Final = ("auto", *native.ISAS, "reference", "deepspeed")
_log = logging.getLogger(__name__)
_Run = Callable[[PartState, Tensor, StepConstants], None]


class HostAdamW:
    """Updates parts in place, weight and state, from flat gradients.

    Args:
        settings: Hyper-parameters, master format and number of threads.
        weight_dtype: ``torch.float32`` (the weight is the master, whatever the
            settings say) or ``torch.bfloat16``.
        kernel: One of :data:`KERNELS`; ``auto`` takes the fastest that runs here.

    Raises:
        InvalidInput: If a dtype, kernel or master is unknown or cannot run here.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        weight_dtype: torch.dtype,
        kernel: str = "auto",
    ) -> None:
        if weight_dtype not in (torch.float32, torch.bfloat16):
            raise InvalidInput("weight_dtype", weight_dtype, "use float32 or bfloat16")
        self.settings = settings
        self.weight_dtype = weight_dtype
        self.master: Master = (
            "fp32" if weight_dtype == torch.float32 else settings.master
        )
        self.kernel = _choose_kernel(kernel, settings)
        self._run = self._runner()
        if self.master == "bf16":
            _log.warning(
                "master = bf16: updates below half a bf16 step are lost; at a learning "
                "rate of 1e-5 those are most of them"
            )

    def _runner(self) -> _Run:
        """Return the function that performs an update."""
        if self.kernel == "reference":
            return reference.update
        if self.kernel == "deepspeed":
            return deepspeed.CpuAdam(self.settings, self.master).update
        library = native.library()
        if library is None:
            raise InvalidInput("kernel", self.kernel, "no compiler; use 'reference'")

        def run(state: PartState, gradient: Tensor, constants: StepConstants) -> None:
            threads = self.settings.threads
            library.update(state, gradient, constants, threads=threads, isa=self.kernel)

        return run

    def new_state(
        self, weight: Tensor, slices: Sequence[TensorSlice], eight_bit: Sequence[bool]
    ) -> PartState:
        """Allocate the state of a part; the weight is neither read nor written.

        The master starts as the weight itself: a zero remainder, zero moments.

        Args:
            weight: Flat buffer of the part, kept by reference.
            slices: Its tensors, in order and apart.
            eight_bit: For each slice, whether its moments are 8-bit.

        Raises:
            InvalidInput: If the buffer or a slice does not fit.
        """
        if weight.dtype != self.weight_dtype:
            raise InvalidInput("weight", weight.dtype, f"expected {self.weight_dtype}")
        check_slices(weight, slices)
        if self.kernel == "deepspeed" and any(eight_bit):
            remedy = "DeepSpeed's kernel has fp32 state only"
            raise InvalidInput("eight_bit", True, remedy)
        placements = place(slices, eight_bit)
        remainder = None
        if self.master == "fp32-split":
            remainder = zeros(weight.numel(), torch.int16, weight.device)
        return PartState(
            slices=tuple(slices),
            placements=placements,
            master=self.master,
            weight=weight,
            remainder=remainder,
            moments=new_moments(slices, placements, weight.device),
            salt=salt_of(slices),
        )

    def update(
        self,
        state: PartState,
        gradient: Tensor,
        *,
        step: int,
        learning_rate: float,
        scale: float,
    ) -> None:
        """Apply one AdamW step to a part; nothing is written if it is refused.

        Args:
            state: State made by :meth:`new_state`.
            gradient: Flat bf16 or fp32 tensor of the weight's layout.
            step: Number of the step, from 1.
            learning_rate: This step's rate.
            scale: Clip factor, applied to the gradient inside the kernel.

        Raises:
            InvalidInput: If the gradient does not fit the weight, or a number is not
                finite (a step whose norm is not finite must be skipped).
        """
        _check_gradient(state, gradient)
        constants = StepConstants.make(self.settings, step, learning_rate, scale)
        if gradient.device.type == "cpu":
            self._run(state, gradient, constants)
        else:
            reference.update(state, gradient, constants)


def _choose_kernel(kernel: str, settings: OptimizerSettings) -> str:
    """Return the kernel to run for a request."""
    if kernel not in KERNELS:
        raise InvalidInput("kernel", kernel, f"choose one of {', '.join(KERNELS)}")
    if kernel == "auto" and settings.type == "deepspeed_adam":
        return "deepspeed"
    library = None if kernel in ("reference", "deepspeed") else native.library()
    if kernel == "auto":
        return "reference" if library is None else library.best_isa
    if library is not None:
        library.check_isa(kernel)
    return kernel


def _check_gradient(state: PartState, gradient: Tensor) -> None:
    """Refuse a gradient that is not the weight's image in bf16 or fp32."""
    if gradient.shape != state.weight.shape:
        remedy = f"expected the weight's layout, {tuple(state.weight.shape)}"
        raise InvalidInput("gradient", tuple(gradient.shape), remedy)
    if gradient.dtype not in (torch.bfloat16, torch.float32):
        raise InvalidInput("gradient", gradient.dtype, "pass bfloat16 or float32")
    if gradient.device != state.weight.device or not gradient.is_contiguous():
        remedy = f"pass a dense tensor on {state.weight.device}"
        raise InvalidInput("gradient", str(gradient.device), remedy)
