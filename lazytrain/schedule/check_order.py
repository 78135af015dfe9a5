"""The checker's rules on how the batch is cut, and on what layers keep of a wave.

As in :mod:`check`, sums are made here again from the two files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.violations import Violation

# Hidden states that the instance's fixed bytes have room for: a layer's input and
# output, and one replayed or three on their way, where another tier takes boundaries.
FIXED_STATES = 3
FIXED_STATES_OFFLOADING = 5


def cut(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """The batch is one group, cut into the waves that sizes and times are for."""
    run = instance.execution
    if run is None:
        return
    if [group.sequences for group in plan.groups] != [run.batch]:
        cut_in = [group.sequences for group in plan.groups]
        yield Violation(kind="order", detail=f"groups of {cut_in}, not one of all")
    for group in plan.groups:
        given, wanted = (group.order, group.micro_batch), (run.order, run.micro_batch)
        if given != wanted:
            detail = f"group of {given[1]}, {given[0]}, not of {wanted[1]}, {wanted[0]}"
            yield Violation(kind="order", detail=detail)


def levels(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """What save levels keep of a wave fits beside its boundaries, to the byte.

    So do those that are read ahead, where a step's fixed allocations are counted.
    """
    kept = 0
    for group in plan.groups:
        for kind, level in zip(instance.layer_types, group.save_level, strict=True):
            menu = _menu(kind, instance)
            if menu and level not in menu:
                detail = f"level {level} of {kind} is not on the menu"
                yield Violation(kind="levels", detail=detail)
            kept += menu.get(level, 0)
    is_derived = instance.fixed_bytes.gpu > 0
    if kept == 0 and not is_derived:
        return
    states = _states_bytes(plan, instance)
    over = kept + states - instance.budget_bytes.gpu
    if over > 0:
        held = f"{kept} B of save levels" if kept else f"{states} B of hidden states"
        detail = f"gpu holds {held}, {over} B over its budget"
        yield Violation(kind="levels", detail=detail)


def _menu(kind: str, instance: Instance) -> dict[str, int]:
    """Return the bytes that each level of a layer type keeps beyond the input.

    Without measured levels the run's own is all there is; the paper's instances have
    neither.
    """
    measured = {cost.name: cost.kept_bytes for cost in instance.levels.get(kind, ())}
    if measured or instance.execution is None:
        return measured
    return {instance.execution.save_level: 0}


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
