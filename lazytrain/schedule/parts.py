"""The model as the planner sees it: its parts, and sizes for the memory model."""

from __future__ import annotations

import math

from lazytrain.errors import InvalidInput
from lazytrain.records import LayerCost, LayerProfile
from lazytrain.schedule.instance import Execution, PartSpec
from lazytrain.schedule.memory import ModelSizes

ITEMSIZE = {"bfloat16": 2, "float32": 4}


def part_specs(layers: LayerProfile) -> tuple[PartSpec, ...]:
    """Return embedding, layers and head in forward order, with ties."""
    itemsize = ITEMSIZE[layers.dtype]
    costs = [cost_of(layers, kind) for kind in layers.layer_types]
    embedding = layers.embedding_parameters
    specs = [
        PartSpec(
            name="embedding",
            kind="embedding",
            num_parameters=embedding,
            weight_bytes=embedding * itemsize,
            gradient_bytes=embedding * itemsize,
        )
    ]
    specs += [
        PartSpec(
            name=f"layer.{i}",
            kind="layer",
            layer_type=cost.layer_type,
            num_parameters=cost.num_parameters,
            weight_bytes=cost.weight_bytes,
            gradient_bytes=cost.num_parameters * itemsize,
        )
        for i, cost in enumerate(costs)
    ]
    head = layers.head_parameters
    specs.append(
        PartSpec(
            name="head",
            kind="head",
            num_parameters=head,
            weight_bytes=head * itemsize,
            gradient_bytes=head * itemsize,
            tied_to="embedding" if layers.tied else None,
        )
    )
    return tuple(specs)


def model_sizes(layers: LayerProfile, run: Execution) -> ModelSizes:
    """Return the sizes at the run's micro-batch, scaled from the profiled tokens."""
    scale = run.micro_batch * run.seq_len / layers.tokens
    workspace = max(cost.workspace_bytes for cost in layers.layers)
    return ModelSizes(
        hidden=layers.hidden_size,
        vocab=layers.vocab_size,
        itemsize=ITEMSIZE[layers.dtype],
        workspace_bytes=math.ceil(workspace * scale),
    )


def cost_of(layers: LayerProfile, kind: str) -> LayerCost:
    """Return the measured cost of a layer type."""
    for cost in layers.layers:
        if cost.layer_type == kind:
            return cost
    raise InvalidInput("layer_types", kind, "the profile has no cost for it")
