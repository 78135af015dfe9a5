"""Solve an instance: run the program, read its status honestly, return a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lazytrain.errors import InvalidInput, NoSchedule, SolverMissing
from lazytrain.schedule import heuristics
from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.counts import single_tier, solve_counts
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.levels import with_levels
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Home, Plan, Solve
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
    program = _build(instance, method)
    _configure(program.model, limits)
    if method == "milp" and not program.edges and not program.carried:
        _keep_lean(program.model)
    if method == "literal":
        from lazytrain.schedule.start import add_start

        add_start(program, instance)
    homes, status = _optimize(instance, program, method)
    carried = {
        key: [max(0.0, program.model.getVal(v)) * program.carried_unit for v in row]
        for key, row in program.carried.items()
    }
    if not carried:
        homes = settle(instance, homes)
    placement = place(instance, homes, carried)
    objective = terms(instance, homes, placement).total_s
    bound = min(objective, program.model.getDualbound() * program.unit_s)
    plan_solve = Solve(
        status=status,
        scope="full" if instance.fixed.is_empty else "restricted",
        fixed=describe_fixed(instance),
        method=method,
        objective_s=objective,
        bound_s=bound,
        gap=relative_gap(objective, bound),
        nodes=int(program.model.getNTotalNodes()),
        seconds=time.perf_counter() - started,
        solver=solver_name(program.model),
        parameters={
            "limits/time": str(limits.time_limit_s),
            "limits/gap": str(limits.gap),
        },
        seed=limits.seed,
    )
    plan = assemble(instance, homes, placement, plan_solve)
    plan = with_levels(plan, instance)
    return plan if status == "optimal" else _no_worse_than_rules(instance, plan)


# Solver tolerances leave this much between an optimal objective and its bound.
PROOF_S = 1e-7


def _build(instance: Instance, method: str) -> Any:
    """Build the program; PySCIPOpt is needed from here on only."""
    try:
        import pyscipopt  # noqa: F401
    except ImportError as error:
        message = "pyscipopt is not installed: `pip install pyscipopt`, or `lazytrain"
        raise SolverMissing(f"{message} solve --method greedy` (no proof)") from error
    if method == "milp":
        from lazytrain.schedule import milp

        return milp.build(instance)
    from lazytrain.schedule import literal

    return literal.build(instance, suffix_rows=method == "literal")


def _configure(model: Any, limits: Limits) -> None:
    """Set limits, seed and tolerances tight enough for a proof."""
    model.hideOutput()
    model.setParam("limits/time", limits.time_limit_s)
    model.setParam("limits/gap", limits.gap)
    model.setParam("randomization/randomseedshift", limits.seed)
    model.setParam("numerics/feastol", 1e-9)
    model.setParam("numerics/dualfeastol", 1e-9)
    # A keyboard interrupt must end the program, not only the solve.
    model.setParam("misc/catchctrlc", False)


def _keep_lean(model: Any) -> None:
    """Leave out what only costs time on the plain compact program (benchmarked)."""
    from pyscipopt import SCIP_PARAMSETTING

    model.setHeuristics(SCIP_PARAMSETTING.FAST)
    model.setParam("misc/usesymmetry", 0)
    model.setParam("propagating/probing/maxprerounds", 0)


def _optimize(
    instance: Instance, program: Any, method: str
) -> tuple[list[Home], Literal["optimal", "feasible"]]:
    """Optimize until the incumbent respects every budget to the byte.

    Raises:
        NoSchedule: If there is no incumbent.
    """
    while True:
        program.model.optimize()
        status = program.model.getStatus()
        if status in ("infeasible", "inforunbd"):
            from lazytrain.schedule.explain import explain

            raise NoSchedule(explain(instance))
        if program.model.getNSols() == 0:
            raise NoSchedule(
                f"the solver stopped ({status}) before it found any schedule: raise "
                "--time-limit-s, or use --method greedy for one without a proof"
            )
        homes = read_homes(instance, program)
        covers = list(_exceeded(instance, homes))
        if not covers:
            return homes, "optimal" if status == "optimal" else "feasible"
        _forbid(program, covers)


def read_homes(instance: Instance, program: Any) -> list[Home]:
    """Read each boundary's home from the incumbent."""
    homes = [Home.RECOMPUTE] * (instance.layers + 1)
    for home, variables in program.homes.items():
        for i, variable in enumerate(variables):
            if program.model.getVal(variable) > 0.5:
                homes[i] = home
    return homes


def _exceeded(
    instance: Instance, homes: Sequence[Home]
) -> Iterator[tuple[Home, list[int]]]:
    """Yield tiers that a solver tolerance has let overflow, and what is in them."""
    for home in (Home.GPU, Home.CPU, Home.NVME):
        inside = [i for i, other in enumerate(homes) if other == home]
        used = sum(instance.boundary_bytes[i] for i in inside)
        if used > getattr(instance.budget_bytes, home.value):
            yield home, inside


def _forbid(program: Any, covers: Sequence[tuple[Home, list[int]]]) -> None:
    """Cut off overfull sets: not all of their members may share the tier."""
    program.model.freeTransform()
    for home, inside in covers:
        total = sum(program.homes[home][i] for i in inside)
        program.model.addCons(total <= len(inside) - 1)


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


def solver_name(model: Any) -> str:
    """Return solver and binding with their versions."""
    import pyscipopt

    return f"SCIP {model.version()} (PySCIPOpt {pyscipopt.__version__})"
