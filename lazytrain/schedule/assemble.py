"""From homes and placed transfers to the plan that the executor reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lazytrain.schedule.instance import Execution, Instance, PartSpec
from lazytrain.schedule.plan import (
    Boundary,
    Gradient,
    Group,
    Home,
    OptimizerState,
    Part,
    Plan,
    Solve,
    Template,
    Transfer,
    blocks_of,
)
from lazytrain.schedule.windows import LINKS, WRITES, Link, Placement, successors


def assemble(
    instance: Instance, homes: Sequence[Home], placement: Placement, solve: Solve
) -> Plan:
    """Build the plan of homes with their transfers.

    Args:
        instance: What was planned; its execution settings fill the plan.
        homes: A home per boundary 0..L.
        placement: Bytes per link, boundary and window.
        solve: How the homes were found.
    """
    run = instance.execution or Execution(batch=1, seq_len=1, micro_batch=1)
    sizes = zip(homes, instance.boundary_bytes, strict=True)
    return Plan(
        name=instance.name,
        model=instance.model,
        instance_sha256=instance.sha256,
        num_layers=instance.layers,
        layer_types=instance.layer_types,
        batch=run.batch,
        seq_len=run.seq_len,
        boundaries=tuple(Boundary(home=h, size_bytes=a) for h, a in sizes),
        blocks=blocks_of(tuple(homes)),
        groups=(_group(instance, run),),
        parts=tuple(_part(spec, run) for spec in instance.parts),
        templates=_templates(instance, run),
        update_order=tuple(spec.name for spec in instance.parts),
        prefetch_distance=run.prefetch_distance,
        weight_slots=run.weight_slots,
        grad_slots=run.grad_slots,
        chunk_bytes=run.chunk_bytes,
        loss_chunk_tokens=run.loss_chunk_tokens,
        optimizer_threads=run.optimizer_threads,
        reserve_bytes=run.reserve_bytes,
        transfers=transfers(homes, placement),
        solve=solve,
    )


def _group(instance: Instance, run: Execution) -> Group:
    """Return the whole batch as one group."""
    return Group(
        sequences=run.batch,
        micro_batch=run.micro_batch,
        order=run.order,
        save_level=(run.save_level,) * instance.layers,
    )


def _templates(instance: Instance, run: Execution) -> tuple[Template, ...]:
    """Return one body per layer type, in order of first use."""
    return tuple(
        Template(layer_type=kind, save_level=run.save_level, body=run.body)
        for kind in dict.fromkeys(instance.layer_types)
    )


def _part(spec: PartSpec, run: Execution) -> Part:
    """Return a part with its residency, gradient and optimizer state."""
    formats: dict[str, Literal["fp32", "8bit", "hybrid"]] = {
        "hybrid_adamw_8bit": "hybrid",
        "cpu_adamw_8bit": "8bit",
    }
    state = formats.get(run.optimizer, "fp32")
    fraction = {"hybrid": run.eight_bit_fraction, "8bit": 1.0}.get(state, 0.0)
    batch_major = run.order == "batch-major"
    # Ends of the network stay on the device: both are read at once by the turn and
    # the first layer, and streaming them would gain no overlap.
    resident = run.resident_weights or spec.kind != "layer"
    return Part(
        name=spec.name,
        kind=spec.kind,
        layer_type=spec.layer_type,
        num_parameters=spec.num_parameters,
        weight_bytes=spec.weight_bytes,
        tied_to=spec.tied_to,
        weights="resident" if resident else "streamed",
        gradient=Gradient(
            dtype="fp32",
            home="gpu" if batch_major else "cpu",
            # The ends' gradients are drained first and last: sent at once, they need
            # no third buffer in HBM.
            drain=run.gradient_drain if spec.kind == "layer" else "whole",
        ),
        optimizer_state=OptimizerState(
            home="nvme" if spec.name in run.state_on_nvme else "cpu",
            format=state,
            eight_bit_fraction=fraction,
            master=run.master,
        ),
    )


def transfers(homes: Sequence[Home], placement: Placement) -> tuple[Transfer, ...]:
    """Return the copies in the order in which each link performs them.

    A write is released when the forward has produced the boundary and must end by the
    turn; a read starts at the turn and must end before the backward of its block.
    """
    ends = successors(homes)
    result = []
    for link in LINKS:
        order = sorted(placement[link], reverse=link not in WRITES)
        for i in order:
            release, deadline = events(link, i, ends[i])
            pieces = dict(sorted(placement[link][i].items()))
            result.append(
                Transfer(
                    boundary=i,
                    link=link,
                    release=release,
                    deadline=deadline,
                    window_bytes=pieces,
                )
            )
    return tuple(result)


def events(link: Link, boundary: int, block_end: int) -> tuple[str, str]:
    """Return release and deadline of one copy.

    ``forward:i`` is the moment boundary i exists, ``turn`` the end of the forward,
    ``backward:j`` the start of layer j's backward.
    """
    if link == "d2h":
        return f"forward:{boundary}", "turn"
    if link == "nvme_write":
        return f"d2h:{boundary}", "turn"
    if link == "nvme_read":
        return "turn", f"h2d:{boundary}"
    return "turn", f"backward:{block_end - 1}"
