"""The resident rival's optimizer: 8-bit AdamW beside the weights it updates.

On a GPU one compiled graph steps every tensor. It takes whole blocks, so small tensors
move into one padded buffer and are stepped together; the padding is zero and stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from lazytrain.config import OptimizerSettings
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.compiled import CompiledAdamW
from lazytrain.optim.state import BLOCK, PartState, TensorSlice

SMALL_BLOCKS: Final = 256  # below it a launch costs more than the arithmetic


class ResidentAdamW:
    """Holds the state of a model's parameters and steps them.

    Args:
        settings: Hyper-parameters and master format.
        named: Parameters by name, all of one dtype and on one device. Small ones get
            other storage with the same values.
        use_compiled: Whether the compiled graph steps them, as it must on a GPU.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        use_compiled: bool,
    ) -> None:
        dtype = named[0][1].dtype
        self._adamw = HostAdamW(settings, dtype)
        self.master = str(self._adamw.master)
        self.kernel = "torch-compiled" if use_compiled else self._adamw.kernel
        self._decay = settings.weight_decay
        self._small = [(n, p) for n, p in named if _is_small(p)]
        self._large = [p for _, p in named if not _is_small(p)]
        self._states = [
            self._state(n, p.detach().view(-1)) for n, p in named if not _is_small(p)
        ]
        self._views: list[Tensor] = []
        self._gathered = torch.zeros(0)
        if self._small:
            self._states.append(self._gather())
        self._compiled = CompiledAdamW(settings, self._states) if use_compiled else None

    def _state(self, name: str, weight: Tensor) -> PartState:
        """Return the state of one flat tensor with moments in 8 bits."""
        piece = TensorSlice(name, 0, weight.numel(), self._decay)
        return self._adamw.new_state(weight, [piece], [True])

    @torch.no_grad()
    def _gather(self) -> PartState:
        """Move small parameters into one buffer of whole blocks; return its state."""
        first = self._small[0][1]
        sizes = [-(-p.numel() // BLOCK) * BLOCK for _, p in self._small]
        flat = torch.zeros(
            max(sum(sizes), 2 * BLOCK), dtype=first.dtype, device=first.device
        )
        self._gathered = torch.zeros_like(flat)
        offset = 0
        for (_, parameter), size in zip(self._small, sizes, strict=True):
            span = slice(offset, offset + parameter.numel())
            view = flat[span].view_as(parameter)
            view.copy_(parameter)
            parameter.data = view
            self._views.append(self._gathered[span].view_as(parameter))
            offset += size
        return self._state("\n".join(name for name, _ in self._small), flat)

    def _gradients(self) -> list[Tensor]:
        """Return each state's flat gradient and take it from the parameters."""
        found = [_taken(parameter).contiguous().view(-1) for parameter in self._large]
        if self._small:
            small = [_taken(parameter) for _, parameter in self._small]
            torch._foreach_copy_(self._views, small)
            found.append(self._gathered)
        return found

    @torch.no_grad()
    def update(self, *, step: int, learning_rate: float, scale: float) -> None:
        """Step every parameter and drop its gradient; see :meth:`HostAdamW.update`."""
        gradients = self._gradients()
        if self._compiled is not None:
            self._compiled.update(
                gradients, step=step, learning_rate=learning_rate, scale=scale
            )
            return
        for state, gradient in zip(self._states, gradients, strict=True):
            self._adamw.update(
                state, gradient, step=step, learning_rate=learning_rate, scale=scale
            )


def _is_small(parameter: nn.Parameter) -> bool:
    """Whether a parameter is stepped in the shared buffer."""
    numel = parameter.numel()
    return numel < SMALL_BLOCKS * BLOCK or numel % BLOCK != 0


def _taken(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient and drop it there; zero for an unused one."""
    gradient = parameter.grad
    parameter.grad = None
    return torch.zeros_like(parameter) if gradient is None else gradient
