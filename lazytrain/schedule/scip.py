"""Running a built program with SCIP, and reading homes that respect every budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from lazytrain.errors import NoSchedule, SolverMissing
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home


def build(instance: Instance, method: str) -> Any:
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


def configure(model: Any, time_limit_s: float, gap: float, seed: int) -> None:
    """Set limits, seed and tolerances tight enough for a proof."""
    model.hideOutput()
    model.setParam("limits/time", time_limit_s)
    model.setParam("limits/gap", gap)
    model.setParam("randomization/randomseedshift", seed)
    model.setParam("numerics/feastol", 1e-9)
    model.setParam("numerics/dualfeastol", 1e-9)
    # A keyboard interrupt must end the program, not only the solve.
    model.setParam("misc/catchctrlc", False)


def keep_lean(model: Any) -> None:
    """Leave out what only costs time on the plain compact program (benchmarked)."""
    from pyscipopt import SCIP_PARAMSETTING

    model.setHeuristics(SCIP_PARAMSETTING.FAST)
    model.setParam("misc/usesymmetry", 0)
    model.setParam("propagating/probing/maxprerounds", 0)


def optimize(
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
        if used > getattr(instance.room_bytes, home.value):
            yield home, inside


def _forbid(program: Any, covers: Sequence[tuple[Home, list[int]]]) -> None:
    """Cut off overfull sets: not all of their members may share the tier."""
    program.model.freeTransform()
    for home, inside in covers:
        total = sum(program.homes[home][i] for i in inside)
        program.model.addCons(total <= len(inside) - 1)


def solver_name(model: Any) -> str:
    """Return solver and binding with their versions."""
    import pyscipopt

    return f"SCIP {model.version()} (PySCIPOpt {pyscipopt.__version__})"
