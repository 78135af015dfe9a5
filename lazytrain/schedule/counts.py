"""Two exact planners without a solver, for the cases that allow one.

``solve_counts``: where all boundaries have one size, some optimum keeps NVMe boundaries
before CPU before GPU ones, and omits the latest of each class of equal transition
cost; so the number omitted per class decides everything. ``single_tier`` is a dynamic
program over HBM bytes for instances whose other tiers are empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Home, Plan, Solve
from lazytrain.schedule.windows import is_admissible, place

MAX_VECTORS = 200_000
MAX_STATES = 20_000_000


def solve_counts(instance: Instance) -> Plan:
    """Return an optimal plan by enumerating how many are omitted per cost class.

    Raises:
        InvalidInput: If the instance is outside the theorem, or has too many classes.
        NoSchedule: If the ends do not fit.
    """
    _refuse_counts(instance)
    best: tuple[float, list[Home]] | None = None
    for omitted in _omissions(instance):
        recompute = sum(instance.rho_s[i - 1] for i in omitted)
        if best and recompute >= best[0]:
            continue
        homes = _order(instance, omitted)
        if homes is None or not is_admissible(instance, homes):
            continue
        value = terms(instance, homes, place(instance, homes)).total_s
        if best is None or value < best[0]:
            best = value, homes
    if best is None:
        raise NoSchedule("the budgets do not hold boundary 0 and the last boundary")
    return _proven(instance, best[1], "counts")


def _refuse_counts(instance: Instance) -> None:
    """Refuse what the exchange argument does not cover."""
    options = instance.options
    plain = options.read_deadline != "block" and options.nvme_coupling != "gds"
    if len(set(instance.boundary_bytes)) > 1 or not plain or options.transient:
        remedy = "needs equal boundaries, no gds, block or transient; use milp"
        raise InvalidInput("method", "counts", remedy)
    if instance.max_block or instance.lambda_c_s > instance.lambda_n_s:
        remedy = "needs no max_block, and lambda_c_s <= lambda_n_s; use milp"
        raise InvalidInput("method", "counts", remedy)
    sizes = [len(members) + 1 for members in _classes(instance).values()]
    if math.prod(sizes) > MAX_VECTORS:
        remedy = f"{len(sizes)} classes of transition cost are too many; use milp"
        raise InvalidInput("method", "counts", remedy)


def _classes(instance: Instance) -> Mapping[float, list[int]]:
    """Return interior boundaries by the cost of omitting them."""
    classes: dict[float, list[int]] = {}
    for i in range(1, instance.layers):
        classes.setdefault(instance.rho_s[i - 1], []).append(i)
    return classes


def _omissions(instance: Instance) -> Iterator[set[int]]:
    """Yield omitted sets: the latest members of each class, few first."""
    classes = list(_classes(instance).values())
    for vector in product(*(range(len(members) + 1) for members in classes)):
        yield {
            i
            for members, number in zip(classes, vector, strict=True)
            for i in members[len(members) - number :]
        }


def _order(instance: Instance, omitted: set[int]) -> list[Home] | None:
    """Give the kept boundaries homes, slowest tier first; None if they do not fit."""
    size = instance.boundary_bytes[0] or 1
    budget = instance.room_bytes
    kept = [i for i in range(instance.layers + 1) if i not in omitted]
    on_gpu = min(len(kept), budget.gpu // size)
    in_dram = min(len(kept) - on_gpu, budget.cpu // size)
    on_disk = len(kept) - on_gpu - in_dram
    if on_gpu < 1 or on_disk > budget.nvme // size:
        return None
    row = [Home.NVME] * on_disk + [Home.CPU] * in_dram + [Home.GPU] * on_gpu
    homes = [Home.RECOMPUTE] * (instance.layers + 1)
    for i, home in zip(kept, row, strict=True):
        homes[i] = home
    return homes


def single_tier(instance: Instance) -> Plan:
    """Return an optimal plan of an instance that has HBM only, by dynamic programming.

    States are (boundary, bytes used in units of the sizes' common divisor); the step
    is a block. Covers unequal boundaries and ``max_block``.

    Raises:
        InvalidInput: If another tier has room, or the states are too many.
        NoSchedule: If no path fits.
    """
    unit = math.gcd(*instance.boundary_bytes) or 1
    size = [value // unit for value in instance.boundary_bytes]
    room = min(instance.room_bytes.gpu // unit, sum(size))
    _refuse_single(instance, room)
    best: dict[tuple[int, int], tuple[float, int]] = {}
    if size[0] <= room:
        best[0, size[0]] = (0.0, -1)
    for end in range(1, instance.layers + 1):
        _extend(instance, best, size, room, end)
    finals = [(value, key) for key, value in best.items() if key[0] == instance.layers]
    if not finals:
        raise NoSchedule("the GPU budget holds no checkpoint path")
    _, (_, used) = min(finals)
    return _proven(instance, _trace(instance, best, size, used), "single-tier")


def _refuse_single(instance: Instance, room: int) -> None:
    """Refuse instances with a second tier or too many states."""
    smallest = min(instance.boundary_bytes)
    if max(instance.budget_bytes.cpu, instance.budget_bytes.nvme) >= max(smallest, 1):
        raise InvalidInput("method", "single-tier", "CPU and NVMe budgets must be 0")
    options = instance.options
    if options.transient or not instance.fixed.is_empty:
        remedy = "transient memory and fixed variables need milp"
        raise InvalidInput("method", "single-tier", remedy)
    if (instance.layers + 1) * (room + 1) > MAX_STATES:
        raise InvalidInput("method", "single-tier", "sizes too fine; use milp")


def _extend(
    instance: Instance,
    best: dict[tuple[int, int], tuple[float, int]],
    size: Sequence[int],
    room: int,
    end: int,
) -> None:
    """Add all paths that end at one more boundary."""
    first = max(0, end - (instance.max_block or instance.layers))
    starts = [(key, value) for key, value in best.items() if first <= key[0] < end]
    for (start, used), (cost, _) in starts:
        total = used + size[end]
        if total > room:
            continue
        reached = cost + sum(instance.rho_s[start : end - 1])
        if (end, total) not in best or reached < best[end, total][0]:
            best[end, total] = (reached, start)
    _charge(instance, best, end)


def _charge(
    instance: Instance, best: dict[tuple[int, int], tuple[float, int]], end: int
) -> None:
    """Add the cost of keeping boundary ``end`` to every path that ends there."""
    for key in [key for key in best if key[0] == end]:
        cost, start = best[key]
        best[key] = (cost + instance.lambda_z_s, start)


def _trace(
    instance: Instance,
    best: Mapping[tuple[int, int], tuple[float, int]],
    size: Sequence[int],
    used: int,
) -> list[Home]:
    """Walk the table back from boundary L."""
    homes = [Home.RECOMPUTE] * (instance.layers + 1)
    end = instance.layers
    while end >= 0:
        homes[end] = Home.GPU
        start = best[end, used][1]
        used -= size[end]
        end = start
    return homes


def _proven(instance: Instance, homes: Sequence[Home], method: str) -> Plan:
    """Wrap homes whose optimality the method itself proves."""
    placement = place(instance, homes)
    value = terms(instance, homes, placement).total_s
    solve = Solve(
        status="optimal",
        method=method,
        objective_s=value,
        bound_s=value,
        gap=0.0,
        solver="exhaustive",
    )
    return assemble(instance, homes, placement, solve)
