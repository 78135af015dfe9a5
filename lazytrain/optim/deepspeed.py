"""DeepSpeed's CPUAdam as an alternative kernel and as the rival in benchmarks.

Its operator checks the dtypes of weights and moments, never the gradient's: fp32
weights with a bf16 gradient would be read past the gradient's end. So the dtype is
asserted here first. It has no split master and holds the GIL while it runs.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput, MissingExtra
from lazytrain.optim.constants import StepConstants
from lazytrain.optim.state import Master, PartState

_CHUNK: Final = 2**22
# DeepSpeed numbers its optimizers process-wide from 0; ours stay clear of them.
_identities: Final = count(1_000_000)


def load_operator() -> Any:
    """Return DeepSpeed's compiled operator; the first call compiles it (minutes).

    Raises:
        MissingExtra: If DeepSpeed is not installed.
    """
    try:
        from deepspeed.ops.op_builder import CPUAdamBuilder
    except ImportError as error:
        raise MissingExtra("baselines", "DeepSpeed's CPUAdam is missing") from error
    return CPUAdamBuilder().load()


class CpuAdam:
    """One instance of DeepSpeed's kernel.

    Raises:
        InvalidInput: If the master is one that the kernel does not know.
    """

    def __init__(self, settings: OptimizerSettings, master: Master) -> None:
        if master not in ("fp32", "bf16"):
            remedy = "deepspeed_adam steps the weights themselves: set master to bf16"
            raise InvalidInput("master", master, remedy)
        self._operator = load_operator()
        self._identity = next(_identities)
        self._operator.create_adam(
            self._identity,
            settings.learning_rate,
            *settings.betas,
            settings.eps,
            settings.weight_decay,
            True,
            False,
        )

    def update(
        self, state: PartState, gradient: Tensor, constants: StepConstants
    ) -> None:
        """Update a part slice by slice; the gradient is scaled in a small copy.

        Raises:
            InvalidInput: If the gradient's dtype is not the weight's.
        """
        if gradient.dtype != state.weight.dtype:
            remedy = f"CPUAdam reads it as {state.weight.dtype}: convert it first"
            raise InvalidInput("gradient", gradient.dtype, remedy)
        for piece, spot in state.placed():
            chunk = max(piece.numel, 1) if constants.scale == 1 else _CHUNK
            for start in range(0, piece.numel, chunk):
                size = min(chunk, piece.numel - start)
                first, moment = piece.offset + start, spot.state_offset + start
                self._step(
                    constants,
                    piece.weight_decay,
                    state.weight[first : first + size],
                    gradient[first : first + size],
                    state.moments.exp_avg[moment : moment + size],
                    state.moments.exp_avg_sq[moment : moment + size],
                )

    def _step(
        self, constants: StepConstants, weight_decay: float, *tensors: Tensor
    ) -> None:
        """Step one run of elements: weight, gradient, first and second moment."""
        weight, gradient, first, second = tensors
        if constants.scale != 1:
            gradient = gradient * constants.scale
        with torch.no_grad():
            self._operator.adam_update(
                self._identity,
                constants.step,
                constants.learning_rate,
                constants.beta1,
                constants.beta2,
                constants.eps,
                weight_decay,
                True,
                weight,
                gradient,
                first,
                second,
            )
