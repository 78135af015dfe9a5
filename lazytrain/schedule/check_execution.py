"""The checker's rules on how a plan is run: what its instance fixed stays as it is.

Slots, drains and residency decide how much memory a step takes beside its boundaries; a
plan that changes them takes another amount than was counted. Instances without an
execution (the paper's) fix none of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lazytrain.schedule.instance import Execution, Instance, PartSpec
from lazytrain.schedule.plan import Part, Plan
from lazytrain.schedule.violations import Violation

FIELDS = (
    "prefetch_distance",
    "weight_slots",
    "grad_slots",
    "chunk_bytes",
    "loss_chunk_tokens",
    "optimizer_threads",
    "reserve_bytes",
)
SHAPE = ("kind", "layer_type", "num_parameters", "weight_bytes", "tied_to")
STATES = {"hybrid_adamw_8bit": "hybrid", "cpu_adamw_8bit": "8bit"}


def execution(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Settings and parts are the instance's."""
    run = instance.execution
    if run is None:
        return
    for name in FIELDS:
        given, wanted = getattr(plan, name), getattr(run, name)
        if given != wanted:
            yield Violation(kind="execution", detail=f"{name} {given}, not {wanted}")
    for template in plan.templates:
        if template.body != run.body:
            detail = f"body of {template.layer_type} is {template.body}, not {run.body}"
            yield Violation(kind="execution", detail=detail)
    yield from _parts(plan, instance, run)


def _parts(plan: Plan, instance: Instance, run: Execution) -> Iterator[Violation]:
    """Every part is there, once, in its place, and is held as was counted."""
    given, wanted = ([p.name for p in parts] for parts in (plan.parts, instance.parts))
    if given != wanted:
        detail = f"{len(given)} parts, not the instance's {len(wanted)}"
        yield Violation(kind="parts", detail=detail)
        return
    if sorted(plan.update_order) != sorted(given):
        detail = "update_order does not name every part once"
        yield Violation(kind="parts", detail=detail)
    for part, spec in zip(plan.parts, instance.parts, strict=True):
        for what, has, needs in _held(part, spec, run):
            if has != needs:
                detail = f"{what} of {part.name} is {has}, not {needs}"
                yield Violation(kind="parts", detail=detail)


def _held(
    part: Part, spec: PartSpec, run: Execution
) -> Iterator[tuple[str, object, object]]:
    """Yield what a part says of itself, and what the instance makes of it."""
    for name in SHAPE:
        yield name, getattr(part, name), getattr(spec, name)
    is_layer = spec.kind == "layer"
    resident = run.resident_weights or not is_layer
    yield "weights", part.weights, "resident" if resident else "streamed"
    home = "gpu" if run.order == "batch-major" else "cpu"
    yield "gradient's home", part.gradient.home, home
    yield "gradient's sum", part.gradient.dtype, "fp32"
    drain = run.gradient_drain if is_layer else "whole"
    yield "gradient's drain", part.gradient.drain, drain
    state = part.optimizer_state
    on_disk = spec.name in run.state_on_nvme
    yield "state's home", state.home, "nvme" if on_disk else "cpu"
    yield "state", state.format, STATES.get(run.optimizer, "fp32")
    yield "8-bit share", state.eight_bit_fraction, _eight_bit_share(run)
    yield "master", state.master, run.master
    yield "optimizer", part.optimizer, "cpu"


def _eight_bit_share(run: Execution) -> float:
    """Return the share of 8-bit state that the host's bytes are counted with."""
    shares = {"hybrid_adamw_8bit": run.eight_bit_fraction, "cpu_adamw_8bit": 1.0}
    return shares.get(run.optimizer, 0.0)
