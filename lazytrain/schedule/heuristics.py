"""Schedules made by rule, each a plan that the same checker and executor accept.

``fixed_interval`` is MegaTrain's checkpointing seen as a point of the paper's space.
Every rule fills HBM first, then DRAM, then NVMe, in the order it names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Home, Plan, Solve
from lazytrain.schedule.windows import is_admissible, place
from lazytrain.units import format_bytes

TIERS = (Home.GPU, Home.CPU, Home.NVME)


def fixed_interval(instance: Instance, every: int = 4) -> Plan:
    """Keep every ``every``-th boundary and both ends; recompute the rest.

    Raises:
        InvalidInput: If ``every`` is below 1 or above the longest allowed block.
        NoSchedule: If the checkpoints fit in no tier.
    """
    longest = instance.max_block or instance.layers
    if every < 1:
        raise InvalidInput("fixed-interval", every, "write a whole number from 1 on")
    if min(every, instance.layers) > longest:
        raise InvalidInput("fixed-interval", every, f"max_block is {longest}")
    kept = [*range(0, instance.layers, every), instance.layers]
    return _plan(instance, fill(instance, kept), f"fixed-interval:{every}")


def keep_all(instance: Instance) -> Plan:
    """Keep every boundary: HBM first, then DRAM, then NVMe.

    Raises:
        NoSchedule: If the three tiers together are too small.
    """
    return _plan(instance, fill(instance, range(instance.layers + 1)), "keep-all")


def recompute_all(instance: Instance) -> Plan:
    """Keep the two ends only, or as few more as ``max_block`` asks for."""
    every = instance.max_block or instance.layers
    kept = [*range(0, instance.layers, every), instance.layers]
    return _plan(instance, fill(instance, kept), "recompute-all")


def sqrt_l(instance: Instance) -> Plan:
    """Keep every ceil(sqrt(L))-th boundary (Chen et al., 2016)."""
    every = math.ceil(math.sqrt(instance.layers))
    every = min(every, instance.max_block or every)
    kept = [*range(0, instance.layers, every), instance.layers]
    return _plan(instance, fill(instance, kept), "sqrt-l")


def greedy(instance: Instance) -> Plan:
    """Keep boundaries by seconds saved per byte while that lowers the objective.

    Starts from the barest schedule that fits.

    Raises:
        NoSchedule: If none of the simple rules fits.
    """
    homes = list(barest(instance).homes)
    value = _objective(instance, homes)
    interior = [i for i, home in enumerate(homes) if home == Home.RECOMPUTE]
    size = instance.boundary_bytes
    interior.sort(key=lambda i: (-instance.rho_s[i - 1] / max(size[i], 1), i))
    for i in interior:
        for home in TIERS:
            trial = [*homes[:i], home, *homes[i + 1 :]]
            cost = _objective(instance, trial)
            if cost < value:
                homes, value = trial, cost
    return _plan(instance, homes, "greedy")


def barest(instance: Instance) -> Plan:
    """Return the simple rule's schedule that keeps least and still fits.

    Raises:
        NoSchedule: If none fits.
    """
    for rule in (recompute_all, fixed_interval, keep_all):
        try:
            return rule(instance)
        except (NoSchedule, InvalidInput):
            continue
    # The one that needs least with recomputation charged; its message is the closest.
    return sqrt_l(instance)


def fill(instance: Instance, kept: Iterable[int]) -> list[Home]:
    """Give the kept boundaries homes, HBM first; the last one is always in HBM.

    Raises:
        NoSchedule: If one of them fits nowhere; says how much is missing.
    """
    chosen = sorted(set(kept))
    homes: list[Home | None] = [Home.RECOMPUTE] * (instance.layers + 1)
    for i in chosen:
        homes[i] = None
    settled = _without_windows(instance, chosen)
    for i in settled:
        homes[i] = Home.GPU
    for i in chosen:
        if i in settled:
            continue
        for home in TIERS:
            homes[i] = home
            if fits(instance, homes):
                break
        else:
            raise NoSchedule(_no_room(instance, chosen))
    placed = [home for home in homes if home is not None]
    if not fits(instance, placed) or not is_admissible(instance, placed):
        raise NoSchedule(_no_room(instance, chosen))
    return placed


def _without_windows(instance: Instance, kept: Sequence[int]) -> set[int]:
    """Return the boundaries that only HBM can hold: no window is left to read them."""
    last, deadline = instance.layers, instance.options.read_deadline
    late = {"paper": last, "layer": last - 1}.get(deadline, last)
    held = {i for i in kept if i >= late}
    if deadline == "block":
        held |= {start for start, end in pairwise(kept) if end == last}
    return held


def fits(instance: Instance, homes: Sequence[Home | None]) -> bool:
    """Whether homes respect every budget, transient memory included.

    None is a boundary that is kept but has no home yet: it takes no room.
    """
    used = dict.fromkeys(TIERS, 0)
    block = widest = worst = 0
    for size, home in zip(instance.boundary_bytes, homes, strict=True):
        if home == Home.RECOMPUTE:
            block += size
            widest = max(widest, block)
            worst = max(worst, used[Home.GPU] + block)
        else:
            block = 0
            if home is not None:
                used[home] += size
    if instance.options.transient:
        is_profile = instance.options.memory == "profile"
        on_gpu = used[Home.GPU]
        used[Home.GPU] = max(on_gpu, worst) if is_profile else on_gpu + widest
    budget = instance.room_bytes
    return all(used[home] <= getattr(budget, home.value) for home in TIERS)


def _objective(instance: Instance, homes: Sequence[Home]) -> float:
    """Return the objective, infinite where homes are not allowed."""
    if not fits(instance, homes) or not is_admissible(instance, homes):
        return math.inf
    return terms(instance, homes, place(instance, homes)).total_s


def _plan(instance: Instance, homes: Sequence[Home], method: str) -> Plan:
    """Wrap homes as a plan."""
    placement = place(instance, homes)
    value = terms(instance, homes, placement).total_s
    solve = Solve(status="heuristic", method=method, objective_s=value)
    return assemble(instance, homes, placement, solve)


def _no_room(instance: Instance, kept: Sequence[int]) -> str:
    """Say what the checkpoints need and what there is."""
    sizes, budget = instance.boundary_bytes, instance.room_bytes
    needed = sum(sizes[i] for i in kept)
    block = ""
    if instance.options.transient:
        widest = max(sum(sizes[s + 1 : e]) for s, e in pairwise(kept))
        block = f" and {format_bytes(widest)} recomputed at once"
    return (
        f"{len(kept)} boundaries of {format_bytes(needed)} in all{block} do not fit in "
        f"the budgets: GPU {format_bytes(budget.gpu)}, CPU {format_bytes(budget.cpu)}, "
        f"NVMe {format_bytes(budget.nvme)}; raise one or keep fewer boundaries"
    )
