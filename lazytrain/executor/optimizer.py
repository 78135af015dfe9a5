"""Host AdamW over the engine's parts: state as the plan says, updated part by part."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.executor.layout import Layout
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.partition import eight_bit_slices, fraction_of
from lazytrain.optim.state import PartState, TensorSlice
from lazytrain.schedule.plan import Plan


class HostOptimizer:
    """State and updates of all parts.

    Args:
        plan: Says each part's state format; the settings hold for a plan without parts.
        settings: Hyper-parameters.
        layouts: Layout per part.
        weights: Flat host weights per part, updated in place.
        gradients: Flat host gradients per part.
        kernel: Kernel name or ``auto``.
    """

    def __init__(
        self,
        plan: Plan,
        settings: OptimizerSettings,
        layouts: Mapping[str, Layout],
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        kernel: str,
    ) -> None:
        self._gradients = gradients
        dtype = next(iter(weights.values())).dtype
        self._adamw = HostAdamW(settings, dtype, kernel)
        slices = {
            part: [
                TensorSlice(
                    f"{part}.{field.name}",
                    field.offset,
                    field.numel,
                    settings.weight_decay,
                )
                for field in layout.fields
            ]
            for part, layout in layouts.items()
        }
        fraction = plan_fraction(plan, settings)
        chosen = eight_bit_slices(slices, fraction)
        self.states: dict[str, PartState] = {
            part: self._adamw.new_state(weights[part], slices[part], chosen[part])
            for part in layouts
        }
        self.state_format = format_name(fraction)

    @property
    def kernel(self) -> str:
        """Name of the kernel that runs."""
        return self._adamw.kernel

    @property
    def master(self) -> str:
        """Format of the master weights."""
        return str(self._adamw.master)

    @property
    def host_bytes(self) -> int:
        """Bytes of all optimizer state."""
        return sum(state.host_bytes for state in self.states.values())

    def tensors(self) -> dict[str, Tensor]:
        """Return every state tensor as ``part/name``, as views of the live state."""
        return {
            f"{part}/{name}": tensor
            for part, state in self.states.items()
            for name, tensor in state.tensors().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy saved state into the live one.

        Raises:
            InvalidInput: If a tensor is missing, has another size, or is left over:
                the state was saved under another format.
        """
        live = self.tensors()
        odd = sorted(live.keys() ^ tensors.keys())
        if odd:
            remedy = "resume with the optimizer type and fraction that saved it"
            raise InvalidInput("optimizer state", odd[0], remedy)
        for name, tensor in live.items():
            if tensor.shape != tensors[name].shape:
                expected = tuple(tensor.shape)
                found = tuple(tensors[name].shape)
                raise InvalidInput(name, found, f"expected shape {expected}")
            tensor.copy_(tensors[name])

    def update(
        self, part: str, *, step: int, learning_rate: float, scale: float
    ) -> None:
        """Apply one clipped AdamW step to a part."""
        self._adamw.update(
            self.states[part],
            self._gradients[part],
            step=step,
            learning_rate=learning_rate,
            scale=scale,
        )


def plan_fraction(plan: Plan, settings: OptimizerSettings) -> float:
    """Return the share of parameters with 8-bit state."""
    formats = {part.optimizer_state.format for part in plan.parts}
    if not formats:
        return fraction_of(settings)
    if formats == {"fp32"}:
        return 0.0
    if formats == {"8bit"}:
        return 1.0
    return max(part.optimizer_state.eight_bit_fraction for part in plan.parts)


def format_name(fraction: float) -> str:
    """Return the state format's name in records."""
    if fraction == 0:
        return "fp32"
    return "8bit" if fraction == 1 else f"hybrid-{fraction:g}"
