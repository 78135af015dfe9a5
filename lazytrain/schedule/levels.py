"""Spending what HBM is left on keeping more of the forward.

Boundary placement decides first; what remains of the budget keeps more than the input
of some layers, so that their backward recomputes less. Gains are close to linear in
bytes (design figures: a third of the bytes costs 1 % of the time), so levels are raised
in order of seconds saved per byte. The last layers come first: their graphs are held
for the shortest time.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazytrain.schedule.instance import Instance, LevelCost
from lazytrain.schedule.memory import planned_bytes
from lazytrain.schedule.plan import Plan, Template


def spare_bytes(plan: Plan, instance: Instance) -> int:
    """Return the HBM that a plan leaves free below the cap and the reserve."""
    run = instance.execution
    cap = instance.budget_bytes.gpu + instance.fixed_bytes.gpu
    reserve = run.reserve_bytes if run else 0
    return cap - reserve - planned_bytes(plan, instance)["gpu"]


def choose_levels(instance: Instance, spare: int) -> tuple[str, ...]:
    """Return a save level per layer that fits into ``spare`` bytes.

    The first level of each layer type's menu is what every layer has anyway.
    """
    chosen = [0] * instance.layers
    menus = [instance.levels.get(kind, ()) for kind in instance.layer_types]
    while True:
        best: tuple[float, int, int] | None = None
        for layer in range(instance.layers):
            option = _raise(menus[layer], chosen[layer], spare)
            if option is not None and (best is None or option[0] >= best[0]):
                best = (option[0], layer, option[1])
        if best is None:
            break
        _, layer, level = best
        menu = menus[layer]
        spare -= menu[level].kept_bytes - menu[chosen[layer]].kept_bytes
        chosen[layer] = level
    base = instance.execution.save_level if instance.execution else "inputs"
    return tuple(
        menu[level].name if menu else base
        for menu, level in zip(menus, chosen, strict=True)
    )


def _raise(
    menu: Sequence[LevelCost], level: int, spare: int
) -> tuple[float, int] | None:
    """Return the best gain per byte above a level, and the level that gives it."""
    best: tuple[float, int] | None = None
    for other in range(level + 1, len(menu)):
        size = menu[other].kept_bytes - menu[level].kept_bytes
        gain = menu[level].step_s - menu[other].step_s
        if 0 < size <= spare and gain > 0 and (best is None or gain / size > best[0]):
            best = (gain / size, other)
    return best


def with_levels(plan: Plan, instance: Instance) -> Plan:
    """Return the plan with its spare HBM spent on save levels."""
    if not instance.levels or len(plan.groups) != 1:
        return plan
    levels = choose_levels(instance, spare_bytes(plan, instance))
    group = plan.groups[0].model_copy(update={"save_level": levels})
    rows = plan.batch if group.order == "layer-major" else group.micro_batch
    share = group.micro_batch / rows
    templates = {
        (kind, level): Template(
            layer_type=kind,
            save_level=level,
            body=instance.execution.body if instance.execution else "eager",
            kept_bytes=int(_kept(instance, kind, level) * share),
        )
        for kind, level in zip(instance.layer_types, levels, strict=True)
    }
    return plan.model_copy(
        update={"groups": (group,), "templates": tuple(templates.values())}
    )


def _kept(instance: Instance, kind: str, level: str) -> int:
    """Return what a level of a layer type keeps of a wave."""
    sizes = {cost.name: cost.kept_bytes for cost in instance.levels.get(kind, ())}
    return sizes.get(level, 0)


def saved_s(plan: Plan, instance: Instance) -> tuple[float, ...]:
    """Return the seconds each layer's backward saves over the base level."""
    saved = []
    levels = plan.groups[0].save_level
    for kind, level in zip(instance.layer_types, levels, strict=True):
        menu = {cost.name: cost for cost in instance.levels.get(kind, ())}
        base = next(iter(menu.values()), None)
        here = menu.get(level, base)
        saved.append(base.step_s - here.step_s if base and here else 0.0)
    return tuple(saved)
