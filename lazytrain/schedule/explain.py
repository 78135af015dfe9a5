"""Say in words why an instance has no schedule, and what would make one possible."""

from __future__ import annotations

from typing import Any

from lazytrain.schedule.instance import Fixed, Instance
from lazytrain.schedule.plan import Home
from lazytrain.units import MIB, format_bytes

NAMES = {Home.GPU: "GPU", Home.CPU: "CPU", Home.NVME: "NVMe"}


def explain(instance: Instance) -> str:
    """Return the conflict of an infeasible instance, in words a user can act on.

    Tries, in order: the ends alone against the GPU budget, the smallest budget of each
    tier that would do with the others as they are, and each fixed set or limit.
    """
    message = _ends(instance)
    if message:
        return message
    remedies = [_budget_remedy(instance, home) for home in NAMES]
    remedies += [_relaxed(instance, change, text) for change, text in _limits(instance)]
    useful = [text for text in remedies if text]
    if not useful:
        useful = ["no single limit is to blame; raise the budgets of several tiers"]
    return "no schedule fits: " + "; or ".join(useful)


def _ends(instance: Instance) -> str:
    """Check boundary L, and boundary 0 where nothing but the GPU can hold it."""
    size, budget = instance.boundary_bytes, instance.budget_bytes
    elsewhere = max(budget.cpu, budget.nvme) >= size[0]
    needed = size[-1] if elsewhere else size[0] + size[-1]
    needed += _smallest_block(instance) + instance.base_kept_bytes
    if needed <= budget.gpu:
        return ""
    ends = f"boundary {instance.layers}"
    if not elsewhere:
        ends = f"boundary 0, {ends}"
    if instance.options.transient:
        ends += " and one layer's recomputation"
    return (
        f"GPU budget {_exact(budget.gpu)} is below the {_exact(needed)} that "
        f"{ends} need"
    )


def _smallest_block(instance: Instance) -> int:
    """Return the transient bytes that even the finest recomputation needs."""
    budget = instance.budget_bytes
    total = sum(instance.boundary_bytes)
    is_static = instance.options.memory == "static"
    if (
        not instance.options.transient
        or not is_static
        or total <= sum((budget.gpu, budget.cpu, budget.nvme))
    ):
        return 0
    return min(instance.boundary_bytes)


def _exact(size: int) -> str:
    """Return bytes for people, exact where rounding would hide the difference."""
    if size < MIB:
        return f"{size:,} B"
    return f"{format_bytes(size)} ({size:,} B)"


def _budget_remedy(instance: Instance, home: Home) -> str:
    """Return the smallest budget of one tier that makes a schedule possible."""
    plenty = instance.budget_bytes.model_copy(
        update={home.value: sum(instance.boundary_bytes) * 2}
    )
    needed = _least_use(instance.model_copy(update={"budget_bytes": plenty}), home)
    if needed is None:
        return ""
    if home == Home.GPU:
        needed += instance.base_kept_bytes
    given: int = getattr(instance.budget_bytes, home.value)
    return (
        f"{NAMES[home]} budget {_exact(given)} must rise to {_exact(needed)} "
        "with the other limits as they are"
    )


def _least_use(instance: Instance, home: Home) -> int | None:
    """Return the least bytes one tier must hold, None if infeasible regardless."""
    from lazytrain.schedule import milp
    from lazytrain.schedule.program import common_divisor

    program = milp.build(instance)
    unit = common_divisor(instance)
    sizes = [value // unit for value in instance.boundary_bytes]
    used = sum(a * v for a, v in zip(sizes, program.homes[home], strict=True))
    if home == Home.GPU and instance.options.transient:
        used = _with_transient(instance, program, sizes, used)
    program.model.setObjective(used, "minimize")
    program.model.optimize()
    if program.model.getStatus() != "optimal":
        return None
    least: float = program.model.getObjVal()
    return round(least) * unit


def _with_transient(
    instance: Instance, program: Any, sizes: list[int], kept: Any
) -> Any:
    """Return GPU use with recomputed blocks, as one variable."""
    total = program.model.addVar("gpu_use")
    program.model.addCons(total >= kept)
    if program.widest is not None:
        program.model.addCons(total >= kept + program.widest)
    for k in range(len(sizes) - 1):
        if instance.options.memory == "profile":
            alive = zip(sizes[: k + 1], program.homes[Home.GPU], strict=False)
            kept = sum(a * v for a, v in alive)
        block = sum(
            sum(sizes[s + 1 : e]) * x
            for (s, e), x in program.edges.items()
            if s <= k < e
        )
        program.model.addCons(total >= kept + block)
    return total


def _limits(instance: Instance) -> list[tuple[dict[str, Any], str]]:
    """Return limits that could be lifted, with the words for each."""
    fixed = instance.fixed
    changes: list[tuple[dict[str, Any], str]] = []
    if instance.max_block is not None:
        text = f"max_block = {instance.max_block} must be larger or left out"
        changes.append(({"max_block": None}, text))
    if fixed.gpu is not None:
        without = Fixed(edges=fixed.edges)
        changes.append(({"fixed": without}, "the fixed GPU set must change"))
    if fixed.edges is not None:
        without = Fixed(gpu=fixed.gpu)
        changes.append(({"fixed": without}, "the fixed edges must change"))
    return changes


def _relaxed(instance: Instance, change: dict[str, Any], text: str) -> str:
    """Return the text if lifting this one limit makes a schedule possible."""
    from lazytrain.schedule import milp

    program = milp.build(instance.model_copy(update=change))
    program.model.optimize()
    return text if program.model.getStatus() == "optimal" else ""
