"""Host AdamW over the engine's parts: state where the plan says, updated in order."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.executor.layout import Layout
from lazytrain.executor.state_home import StreamedState
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.partition import eight_bit_slices, fraction_of
from lazytrain.optim.state import PartState, TensorSlice
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.staging import UNIT_PARAMETERS
from lazytrain.tiers.deferred import DeferredTensor
from lazytrain.tiers.tier import Tier


class HostOptimizer:
    """State and updates of all parts.

    Args:
        plan: Says each part's state format; the settings hold for a plan without parts.
        settings: Hyper-parameters.
        layouts: Layout per part.
        weights: Flat host weights per part, updated in place.
        gradients: Flat host gradients per part.
        kernel: Kernel name or ``auto``.
        tier: Where state with the home ``nvme`` lives.
        unit_parameters: Most elements of such state that move as one.
        poison: Fill its staging pages with NaN before they are used again (tests).

    Raises:
        InvalidInput: If the plan puts state on NVMe and no tier was given.
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
        tier: Tier | None = None,
        unit_parameters: int = UNIT_PARAMETERS,
        poison: bool = False,
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
        self.state_format = format_name(fraction)
        streamed = on_nvme(plan, layouts)
        self.states: dict[str, PartState] = {
            part: self._adamw.new_state(weights[part], slices[part], chosen[part])
            for part in layouts
            if part not in streamed
        }
        self._streamed: StreamedState | None = None
        if streamed:
            if tier is None:
                remedy = "the plan keeps optimizer state on NVMe: name a folder"
                raise InvalidInput("scratch", None, remedy)
            self._streamed = StreamedState(
                self._adamw,
                tier,
                {part: weights[part] for part in streamed},
                slices,
                chosen,
                unit_parameters=unit_parameters,
                poison=poison,
            )

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
        """Host memory of all optimizer state, staging of streamed state included."""
        held = sum(state.host_bytes for state in self.states.values())
        return held + (self._streamed.host_bytes if self._streamed else 0)

    def tensors(self) -> dict[str, Tensor | DeferredTensor]:
        """Return every state tensor as ``part/name``: live views, or what reads them.

        Names and shapes are the same wherever a part's state lives.

        Raises:
            StorageFault: If the last update's state could not be written.
        """
        found: dict[str, Tensor | DeferredTensor] = {
            f"{part}/{name}": tensor
            for part, state in self.states.items()
            for name, tensor in state.tensors().items()
        }
        if self._streamed is not None:
            self._streamed.settle()
            found |= self._streamed.tensors()
        return found

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
            saved = tensors[name]
            if tensor.shape != saved.shape:
                expected = tuple(tensor.shape)
                found = tuple(saved.shape)
                raise InvalidInput(name, found, f"expected shape {expected}")
            part, _, own_name = name.partition("/")
            if isinstance(tensor, DeferredTensor):
                assert self._streamed is not None
                self._streamed.load(part, own_name, saved)
            else:
                tensor.copy_(saved)

    def prepare(self) -> None:
        """Start bringing what the next update needs first."""
        if self._streamed is not None:
            self._streamed.prepare()

    def update(
        self, part: str, *, step: int, learning_rate: float, scale: float
    ) -> None:
        """Apply one clipped AdamW step to a part."""
        gradient = self._gradients[part]
        numbers = {"learning_rate": learning_rate, "scale": scale}
        if part in self.states:
            state = self.states[part]
            self._adamw.update(state, gradient, step=step, **numbers)
        else:
            assert self._streamed is not None
            self._streamed.update(part, gradient, step=step, **numbers)


def on_nvme(plan: Plan, layouts: Mapping[str, Layout]) -> list[str]:
    """Return the parts whose state lives on NVMe, in update order."""
    chosen = {p.name for p in plan.parts if p.optimizer_state.home == "nvme"}
    order = plan.update_order or tuple(layouts)
    return [part for part in order if part in chosen]


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
