"""The checker's rules on how the batch is cut, and on what layers keep of a wave.

As in :mod:`check`, sums are made here again from the two files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from lazytrain.schedule.instance import Execution, Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.violations import Violation

# Hidden states that the instance's fixed bytes have room for: a layer's input and
# output, and one replayed or three on their way, where another tier takes boundaries.
FIXED_STATES = 3
FIXED_STATES_OFFLOADING = 5


def cut(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Waves, weights and gradient sums are those that batch-major order needs."""
    run = instance.execution
    orders = {group.order for group in plan.groups}
    if run is None or "batch-major" not in {run.order, *orders}:
        return
    yield from _groups(plan, run)
    if run.order != "batch-major":
        return
    for part in plan.parts:
        if part.weights != "resident":
            detail = f"{part.name} is {part.weights}: it would cross once a wave"
            yield Violation(kind="weights", detail=detail)
        if (part.gradient.home, part.gradient.dtype) != ("gpu", "fp32"):
            detail = (
                f"{part.name} sums {part.gradient.dtype} on {part.gradient.home}, "
                "waves need fp32 on gpu"
            )
            yield Violation(kind="gradient", detail=detail)


def _groups(plan: Plan, run: Execution) -> Iterator[Violation]:
    """The batch is cut as the instance's sizes assume."""
    for group in plan.groups:
        given, wanted = (group.order, group.micro_batch), (run.order, run.micro_batch)
        if given != wanted:
            detail = f"group of {given[1]}, {given[0]}, not of {wanted[1]}, {wanted[0]}"
            yield Violation(kind="order", detail=detail)


def levels(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """What save levels keep of a wave fits beside its boundaries, to the byte."""
    kept = 0
    for group in plan.groups:
        for kind, level in zip(instance.layer_types, group.save_level, strict=True):
            menu = instance.levels.get(kind, ())
            found = [cost.kept_bytes for cost in menu if cost.name == level]
            if menu and not found:
                detail = f"level {level} of {kind} is not on the menu"
                yield Violation(kind="levels", detail=detail)
            kept += max(found, default=0)
    if kept == 0:
        return
    over = kept + _states_bytes(plan, instance) - instance.budget_bytes.gpu
    if over > 0:
        detail = f"gpu holds {kept} B of save levels, {over} B over its budget"
        yield Violation(kind="levels", detail=detail)


def _states_bytes(plan: Plan, instance: Instance) -> int:
    """Return the bytes of hidden states beyond those that are fixed."""
    homes = [boundary.home for boundary in plan.boundaries]
    kept = [i for i, home in enumerate(homes) if home != Home.RECOMPUTE]
    moves = Home.CPU in homes or Home.NVME in homes
    passing = 0
    if moves or Home.RECOMPUTE in homes:
        longest = max((end - start for start, end in pairwise(kept)), default=1)
        # A block's interior and its start, and what is read ahead.
        passing = max(3, longest + (plan.read_ahead_blocks + 1 if moves else 0))
    size, budget = max(instance.boundary_bytes), instance.budget_bytes
    offloads = max(budget.cpu, budget.nvme) >= size
    fixed = FIXED_STATES_OFFLOADING if offloads else FIXED_STATES
    # One more is the gradient of the wave's hidden states.
    return (homes.count(Home.GPU) + passing + 1 - fixed) * size
