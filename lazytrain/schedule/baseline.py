"""Planning for MegaTrain's own step: its memory, and checkpoints in HBM alone.

The step runs each layer over the whole batch with an eager body, holds every logit
until one backward, and has no way to send a boundary elsewhere. The model errs on the
side of memory; a plan that is too large for the card ends in a recorded OOM.
"""

from __future__ import annotations

from lazytrain.records import LayerCost, LayerProfile, SaveLevel
from lazytrain.schedule.instance import Budget, Execution, Instance
from lazytrain.schedule.memory import state_bytes_per_parameter
from lazytrain.schedule.parts import ITEMSIZE

WHOLE_BATCH_BUFFERS = 5  # hidden states and gradients in flight
LOGITS_SLACK = 1.3  # kept log-probabilities, and chunks on their way through backward
EAGER_SLACK = 1.6  # an eager body saves about half as much again as a compiled one
SLOTS = 2
# Systems whose plan is performed by the baseline's step.
ON_BASELINE = ("megatrain-milp",)
INTERVAL = 4


def with_baseline_memory(instance: Instance, layers: LayerProfile) -> Instance:
    """Return the problem with the baseline's memory and HBM as its only tier.

    There is always room for the fixed interval's checkpoints, which the baseline keeps
    without asking.
    """
    run = instance.execution
    if run is None:
        return instance
    cap = instance.fixed_bytes.gpu + instance.budget_bytes.gpu
    fixed = run.reserve_bytes + baseline_bytes(instance, layers, run)
    least = least_bytes(instance)
    return instance.model_copy(
        update={
            "budget_bytes": Budget(gpu=max(cap - fixed, least), cpu=0, nvme=0),
            "fixed_bytes": Budget(gpu=fixed, cpu=instance.fixed_bytes.cpu, nvme=0),
            "levels": {},
        }
    )


def least_bytes(instance: Instance) -> int:
    """Return the bytes of the fixed interval's checkpoints and one replayed block."""
    held = instance.layers // INTERVAL + INTERVAL + 2
    return held * instance.boundary_bytes[0]


def whole_level(cost: LayerCost) -> SaveLevel | None:
    """Return the level at which a layer recomputes nothing, if it was measured."""
    return next((level for level in cost.levels if level.name == "all"), None)


def whole_bytes(cost: LayerCost) -> int:
    """Return what a layer keeps that recomputes nothing, for the profiled tokens.

    Where that was not measured it is what its backward held at most, which is more.
    """
    full = whole_level(cost)
    return full.kept_bytes if full else cost.workspace_bytes


def baseline_bytes(instance: Instance, layers: LayerProfile, run: Execution) -> int:
    """Return what the baseline's step holds in HBM beside its checkpoints."""
    tokens = run.batch * run.seq_len
    itemsize = ITEMSIZE[layers.dtype]
    ends = sum(part.weight_bytes for part in instance.parts if part.kind != "layer")
    widest = max(cost.weight_bytes for cost in layers.layers)
    kept = max(whole_bytes(cost) for cost in layers.layers)
    logits = LOGITS_SLACK * tokens * layers.vocab_size * itemsize
    body = EAGER_SLACK * kept * tokens / layers.tokens
    return int(
        3 * ends
        + 2 * SLOTS * widest
        + WHOLE_BATCH_BUFFERS * instance.boundary_bytes[0]
        + max(logits, body)
    )


def baseline_host_bytes(layers: LayerProfile, run: Execution) -> float:
    """Return host bytes per parameter: master, pinned copy, gradient, moments."""
    itemsize = ITEMSIZE[layers.dtype]
    return 3 * itemsize + state_bytes_per_parameter(run)
