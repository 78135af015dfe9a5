"""Solve an instance: run the program, read its status honestly, return a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from lazytrain.errors import InvalidInput, NoSchedule
from lazytrain.schedule import heuristics, scip
from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.counts import single_tier, solve_counts
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.levels import with_levels
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Plan, Solve
from lazytrain.schedule.settle import settle
from lazytrain.schedule.simulate import with_prediction
from lazytrain.schedule.windows import place

RULES: dict[str, Callable[[Instance], Plan]] = {
    "keep-all": heuristics.keep_all,
    "recompute-all": heuristics.recompute_all,
    "sqrt-l": heuristics.sqrt_l,
    "greedy": heuristics.greedy,
}
EXACT: dict[str, Callable[[Instance], Plan]] = {
    "counts": solve_counts,
    "single-tier": single_tier,
}
PROGRAMS = ("milp", "literal", "literal-without-suffix-rows")
MOST_SEED = 2**31 - 1  # what SCIP takes
METHODS = (*PROGRAMS, *EXACT, *RULES, "fixed-interval:K")


@dataclass(frozen=True)
class Limits:
    """Where the solver may stop; ``gap`` is relative, 0 asks for a proof."""

    time_limit_s: float = 60.0
    gap: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.time_limit_s < math.inf:
            raise InvalidInput("time-limit-s", self.time_limit_s, "must be above zero")
        if not 0 <= self.gap < math.inf:
            raise InvalidInput("gap", self.gap, "must not be negative")
        if not 0 <= self.seed <= MOST_SEED:
            raise InvalidInput("seed", self.seed, f"choose one from 0 to {MOST_SEED}")


def solve(
    instance: Instance, limits: Limits | None = None, method: str | None = None
) -> Plan:
    """Return a plan by the given method, with the simulator's prediction.

    Args:
        instance: The planning problem.
        limits: Time, gap and seed of a mixed-integer solve.
        method: One of ``METHODS``; default: the one the instance names.

    Raises:
        NoSchedule: If there is none, or the limit came before the first; the message
            says which constraints conflict.
        InvalidInput: If the method is unknown or cannot take this instance.
    """
    plan = with_prediction(_solved(instance, limits, method), instance)
    # Another method's plan is not the one that was compared.
    return plan if method is not None else with_choice(plan, instance)


def with_choice(plan: Plan, instance: Instance) -> Plan:
    """Return the plan with the reason for its instance's order, if it was a choice."""
    if not instance.chosen:
        return plan
    said = plan.solve.parameters | {"order": instance.chosen}
    how = plan.solve.model_copy(update={"parameters": said})
    return plan.model_copy(update={"solve": how})


def _solved(instance: Instance, limits: Limits | None, method: str | None) -> Plan:
    """Dispatch on the method."""
    chosen = method or instance.method
    if chosen in PROGRAMS:
        return solve_milp(instance, limits or Limits(), chosen)
    if not instance.fixed.is_empty:
        raise InvalidInput("method", chosen, "this instance fixes variables; use milp")
    rule = (EXACT | RULES).get(chosen)
    if rule:
        return rule(instance)
    name, _, every = chosen.partition(":")
    if name != "fixed-interval" or not every.isdigit():
        raise InvalidInput("method", chosen, f"choose one of {', '.join(METHODS)}")
    return heuristics.fixed_interval(instance, int(every))


def solve_milp(instance: Instance, limits: Limits, method: str = "milp") -> Plan:
    """Solve the mixed-integer program with SCIP.

    Raises:
        NoSchedule: If infeasible, or no incumbent was found within the limit.
    """
    started = time.perf_counter()
    program = scip.build(instance, method)
    scip.configure(program.model, limits.time_limit_s, limits.gap, limits.seed)
    if method == "milp" and not program.edges and not program.carried:
        scip.keep_lean(program.model)
    if method == "literal":
        from lazytrain.schedule.start import add_start

        add_start(program, instance)
    homes, status = scip.optimize(instance, program, method)
    carried = {
        key: [max(0.0, program.model.getVal(v)) * program.carried_unit for v in row]
        for key, row in program.carried.items()
    }
    if not carried:
        homes = settle(instance, homes)
    placement = place(instance, homes, carried)
    objective = terms(instance, homes, placement).total_s
    bound = min(objective, program.model.getDualbound() * program.unit_s)
    found = Solve(
        status=status,
        scope="full" if instance.fixed.is_empty else "restricted",
        fixed=describe_fixed(instance),
        method=method,
        objective_s=objective,
        bound_s=bound,
        gap=relative_gap(objective, bound),
        nodes=int(program.model.getNTotalNodes()),
        seconds=time.perf_counter() - started,
        solver=scip.solver_name(program.model),
        parameters=_said(limits),
        seed=limits.seed,
    )
    plan = with_levels(assemble(instance, homes, placement, found), instance)
    return plan if status == "optimal" else _no_worse_than_rules(instance, plan)


def _said(limits: Limits) -> dict[str, str]:
    """Return limits by the solver's own names."""
    names = {"limits/time": limits.time_limit_s, "limits/gap": limits.gap}
    return {name: str(value) for name, value in names.items()}


# Solver tolerances leave this much between an optimal objective and its bound.
PROOF_S = 1e-7


def _no_worse_than_rules(instance: Instance, plan: Plan) -> Plan:
    """Take a rule's schedule where a stopped solve has not yet reached it."""
    if not instance.fixed.is_empty:
        return plan
    for name, rule in RULES.items():
        try:
            other = rule(instance)
        except NoSchedule:
            continue
        if other.solve.objective_s < plan.solve.objective_s:
            value = other.solve.objective_s
            solve = plan.solve.model_copy(
                update={
                    "objective_s": value,
                    "gap": relative_gap(value, plan.solve.bound_s or 0.0),
                    "method": f"{plan.solve.method}, incumbent from {name}",
                }
            )
            plan = other.model_copy(update={"solve": solve})
    return plan


def relative_gap(objective: float, bound: float) -> float:
    """Return (objective - bound) / |bound|, as SCIP defines it; 0 at a proof."""
    distance = objective - bound
    if distance <= PROOF_S:
        return 0.0
    return distance / max(abs(bound), 1e-12)


def describe_fixed(instance: Instance) -> str:
    """Say in words what a restricted instance fixes."""
    parts = []
    if instance.fixed.edges is not None:
        parts.append(f"{len(instance.fixed.edges)} recomputation edges")
    if instance.fixed.gpu is not None:
        parts.append(f"GPU set of {len(instance.fixed.gpu)} boundaries")
    return " and ".join(parts)
