"""What a simulated step is made from, and the tasks that others must find again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.levels import saved_s
from lazytrain.schedule.plan import Plan


@dataclass(frozen=True)
class Amounts:
    """Bytes, parameters and seconds of a plan's parts, by name.

    Seconds are those of one of ``waves`` equal passes.
    """

    weight_bytes: Mapping[str, int]
    gradient_bytes: Mapping[str, int]
    parameters: Mapping[str, int]
    streamed: frozenset[str]
    waiting: frozenset[str]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    embedding_s: float
    turn_s: float
    waves: int


def waves_of(plan: Plan) -> int:
    """Return the passes of a step: one per group, or per micro-batch, batch-major."""
    return sum(
        1 if group.order == "layer-major" else group.sequences // group.micro_batch
        for group in plan.groups
    )


def amounts(plan: Plan, instance: Instance) -> Amounts:
    """Return what moves and what is computed.

    Without parts (the paper's instances) mandatory traffic stands for the layers'.
    """
    layers = range(instance.layers)
    weights = {f"layer.{j}": instance.mandatory_h2d_bytes[j] for j in layers}
    gradients = {f"layer.{j}": instance.mandatory_d2h_bytes[j] for j in layers}
    parameters: dict[str, int] = {}
    if instance.parts:
        weights = {part.name: part.weight_bytes for part in instance.parts}
        gradients = {part.name: part.gradient_bytes for part in instance.parts}
        parameters = {part.name: part.num_parameters for part in instance.parts}
    resident = {part.name for part in plan.parts if part.weights == "resident"}
    costs, waves = instance.costs, waves_of(plan)
    return Amounts(
        weights,
        gradients,
        parameters,
        frozenset(weights.keys() - resident),
        frozenset(p.name for p in plan.parts if p.gradient.drain == "as-consumed"),
        tuple(seconds / waves for seconds in costs.forward_s or instance.rho_s),
        tuple(
            max(0.0, seconds - saved) / waves
            for seconds, saved in zip(
                costs.backward_s or instance.window_read_s,
                saved_s(plan, instance),
                strict=True,
            )
        ),
        costs.embedding_s / waves,
        costs.turn_s / waves,
        waves,
    )


@dataclass
class StepMarks:
    """Task indices of one step that memory curves and the next step need.

    Boundaries are those of the last wave; ``earlier`` holds the other waves'.
    """

    updates: dict[str, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    remade: list[tuple[int, int, int]] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    read_from: dict[int, int] = field(default_factory=dict)
    block_end: dict[int, int] = field(default_factory=dict)
    loss: int = 0
    end: int = 0
    earlier: list[StepMarks] = field(default_factory=list)
