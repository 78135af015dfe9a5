"""What MegaTrain's step takes, part by part, under the names that its runs record.

The parts follow one after another, so the step is their sum. ``forward_backward`` is
whole-batch passes of eager layers, each as long as compute or the copy of its weights,
between the copies of embedding and head up and of their gradients down. The rest
happens on the host, with nothing beside it. What a profile does not hold is taken from
what it does hold nearest to it; the reasons are with the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lazytrain.records import HardwareProfile, LayerCost, LayerProfile
from lazytrain.schedule.baseline import whole_level
from lazytrain.schedule.costs import optimizer_rate
from lazytrain.schedule.instance import Execution, Instance
from lazytrain.schedule.memory import MASTER_BYTES
from lazytrain.schedule.parts import ITEMSIZE

# Eager layers against compiled ones, forward and backward: 456 against 604 TFLOPS for a
# resident 3B layer at 16k tokens on an H200, 540 against 633 for a 7B layer. Recorded
# steps of 3B to 14B: 1.17 to 1.29.
EAGER: Final = 1.25
# A product of the forward has two in the backward. Measured without recomputation: 1.91
# times the forward at 3B, 1.93 at 7B.
BACKWARD_PER_FORWARD: Final = 2.0
# torch takes the norm of a host tensor on one thread (two took as long), and no profile
# holds its rate: the median of ten recorded clips of 3B to 14B beside an H200, less the
# scaling (single rows: 3.0 to 5.0).
NORM_S_PER_PARAMETER: Final = 3.4e-10
# Our own norm of a host gradient against a plain pass over it, a third of the copy of
# the weights in the same step: the median of the three recorded rows that take it (3B
# 1.30, 7B 1.34, 14B 1.49). The kernels alone took 1.18 (recorded ``optimizer.json``).
OWN_NORM_PASSES: Final = 1.34
HYBRID: Final = "megatrain-hybrid8bit"
EIGHT_BIT: Final = "cpu_adamw_8bit"


def step_parts(
    instance: Instance,
    layers: LayerProfile,
    hardware: HardwareProfile,
    system: str,
    kept: Sequence[bool],
) -> dict[str, float]:
    """Return seconds by part.

    Args:
        instance: The problem; its execution says batch, state and master.
        layers: Measured layers.
        hardware: Measured rates.
        system: The row's system, of MegaTrain's family.
        kept: Per boundary 0..L, whether it is a checkpoint.
    """
    run = instance.execution
    assert run is not None
    itemsize = ITEMSIZE[layers.dtype]
    parameters = sum(part.num_parameters for part in instance.parts)
    pass_s = host_byte_s(hardware, run, itemsize) * itemsize
    # CPUAdam moves 22 bytes per parameter for the 26 of our update with a split master,
    # at 0.79 of its bytes per second: 0.93 of its parameters, side by side.
    update_s = _inverse(instance.costs.optimizer_parameters_per_s)
    if system == HYBRID:
        clip_s = OWN_NORM_PASSES * pass_s  # the factor goes into the update
        update_s *= _without_remainder(run, itemsize)
    else:
        # The factor is multiplied in: each gradient is read and written again.
        clip_s = NORM_S_PER_PARAMETER + 2 * pass_s
    return {
        "forward_backward": _compute_s(instance, layers, hardware, system, kept),
        "clip": clip_s * parameters,
        "optimizer": update_s * parameters,
        # A line of the copy is read before it is written: three passes in all.
        "copy_weights": 3 * pass_s * parameters,
    }


def host_byte_s(hardware: HardwareProfile, run: Execution, itemsize: int) -> float:
    """Return seconds per byte of a plain pass over host memory on all threads.

    Those of the 8-bit update: beside an H200 its 112 GB/s are what a triad with
    streaming stores reached in the same run (``optimizer.json``: 1.02 of it).
    """
    moved = update_bytes(MASTER_BYTES[run.master], itemsize, 1.0)
    return _inverse(optimizer_rate(hardware, EIGHT_BIT)) / moved


def _inverse(rate: float) -> float:
    """Return seconds per unit, 0 for a rate that is not known."""
    return 1 / rate if rate else 0.0


def update_bytes(remainder: int, itemsize: int, share: float) -> float:
    """Return bytes that our update reads and writes per parameter.

    Args:
        remainder: Bytes of the master beside the weight.
        itemsize: Bytes of a weight and of its gradient.
        share: Share of the parameters with 8-bit moments.
    """
    weight = itemsize + remainder
    moments = share * 2 + (1 - share) * 8
    return 2 * weight + itemsize + 2 * moments


def _without_remainder(run: Execution, itemsize: int) -> float:
    """Return the bytes of an update whose master is the weight, against the profiled.

    The profile's rate is that of the configured master; time follows the bytes.
    """
    share = run.eight_bit_fraction
    profiled = update_bytes(MASTER_BYTES[run.master], itemsize, share)
    return update_bytes(0, itemsize, share) / profiled


def _compute_s(
    instance: Instance,
    layers: LayerProfile,
    hardware: HardwareProfile,
    system: str,
    kept: Sequence[bool],
) -> float:
    """Return the passes over all layers, embedding and loss, and the ends' copies."""
    run = instance.execution
    assert run is not None
    scale = run.batch * run.seq_len / layers.tokens
    slow = 1.0 if layers.body == "eager" else EAGER
    costs = {cost.layer_type: cost for cost in layers.layers}
    link = hardware.link
    ends = sum(part.weight_bytes for part in instance.parts if part.kind != "layer")
    step_s = ends / link.h2d + ends / link.d2h
    step_s += (layers.embedding_s + slow * layers.loss_s) * scale
    for i, kind in enumerate(layers.layer_types):
        forward, backward = (slow * scale * s for s in _passes_s(costs[kind]))
        copy = costs[kind].weight_bytes / link.h2d_together
        passes = [forward, *([forward] if _replays(system, kept, i) else [])]
        step_s += sum(max(seconds, copy) for seconds in (*passes, forward + backward))
    return step_s


def _passes_s(cost: LayerCost) -> tuple[float, float]:
    """Return profiled seconds of a forward, and of a backward without recomputation.

    A level that keeps less than all says little of it: its backward computes most of
    the forward again.
    """
    full = whole_level(cost)
    if full is not None:
        return full.forward_s, full.backward_s
    return cost.forward_s, BACKWARD_PER_FORWARD * cost.forward_s


def _replays(system: str, kept: Sequence[bool], layer: int) -> bool:
    """Whether the step runs a layer once more without a graph before its backward.

    The system as it is replays every layer of a block; on a plan, all but the last.
    """
    if system == "megatrain-single-recompute":
        return False
    return system != "megatrain-milp" or not kept[layer + 1]
