"""Filling host weights, and refusing plans that were made for another model."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput, PlanMismatch
from lazytrain.executor.layout import Layout
from lazytrain.models.decoder import Decoder, PartShape
from lazytrain.schedule.plan import Plan


def fill_weights(
    decoder: Decoder,
    layouts: Mapping[str, Layout],
    host: Mapping[str, Tensor],
    device: torch.device,
    seed: int,
    state_dict: Mapping[str, Tensor] | None,
) -> None:
    """Initialise every part, or load it from a state dict, one part at a time.

    Raises:
        InvalidInput: If a weight is missing or has another shape.
    """
    for part in decoder.parts:
        views = layouts[part.name].named_views(host[part.name])
        if state_dict is None:
            source: Mapping[str, Tensor] = decoder.initial_tensors(part, seed, device)
        else:
            source = {name: _find(state_dict, part, name) for name in part.tensors}
        for name, view in views.items():
            # Rounded where it lies: a copy that changes the dtype on its way from the
            # device goes through pageable memory, at a fiftieth of the link's rate.
            view.copy_(source[name].to(view.dtype))
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _find(state: Mapping[str, Tensor], part: PartShape, name: str) -> Tensor:
    """Return a part's tensor from a state dict."""
    full = part.prefix + name
    if full not in state:
        raise InvalidInput("weights", full, "is missing from the given weights")
    if tuple(state[full].shape) != part.tensors[name]:
        expected = part.tensors[name]
        raise InvalidInput(full, tuple(state[full].shape), f"expected {expected}")
    return state[full]


def check_plan(plan: Plan, decoder: Decoder) -> None:
    """Refuse a plan that was made for another model.

    Raises:
        PlanMismatch: Naming what differs.
    """
    if plan.num_layers != decoder.num_layers:
        raise PlanMismatch(
            f"the plan has {plan.num_layers} layers, the model {decoder.num_layers}"
        )
    if plan.layer_types != decoder.layer_types:
        raise PlanMismatch("the plan's layer types are not the model's")
    known = {part.name: part.num_parameters for part in decoder.parts}
    for part in plan.parts:
        if part.optimizer != "cpu":
            raise PlanMismatch(
                f"part {part.name}: optimizer = {part.optimizer} is not supported by "
                "this executor; plan it with optimizer = cpu"
            )
        if part.optimizer_state.home == "gpu":
            raise PlanMismatch(
                f"part {part.name}: optimizer_state.home = gpu is not supported by "
                "this executor; plan it with home = cpu or nvme"
            )
        if known.get(part.name) != part.num_parameters:
            raise PlanMismatch(
                f"part {part.name} has {part.num_parameters} parameters in the plan, "
                f"{known.get(part.name)} in the model"
            )
