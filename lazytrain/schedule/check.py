"""Replay a plan against its instance without a solver.

Nothing here is shared with the program, the heuristics or the placement: sizes,
budgets, windows, exposure and objective are computed again from the two files alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field

from lazytrain.errors import LazyTrainError
from lazytrain.records import Contract
from lazytrain.schedule import check_execution, check_order, check_transfers
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.violations import Violation

TOLERANCE_S = 1e-6


class Report(Contract):
    """What the replay found; ``objective_s`` and ``exposed_s`` are recomputed."""

    name: str
    plan_sha256: str
    instance_sha256: str
    violations: tuple[Violation, ...]
    objective_s: float
    recompute_s: float
    exposed_s: dict[str, float]
    mandatory_exposed_s: dict[str, float] = Field(
        description="seconds that mandatory traffic exposes under any schedule"
    )
    used_bytes: dict[str, int]
    budget_bytes: dict[str, int]
    counts: dict[str, int]

    @property
    def is_valid(self) -> bool:
        """Whether nothing is violated."""
        return not self.violations

    def raise_if_violated(self) -> None:
        """Raise if any rule is broken.

        Raises:
            PlanViolation: With every violation in words.
        """
        if self.violations:
            lines = [f"[{v.kind}] {v.detail}" for v in self.violations]
            raise PlanViolation(f"plan {self.name}: " + "; ".join(lines))


class PlanViolation(LazyTrainError):
    """A plan breaks its instance's rules."""


def check(plan: Plan, instance: Instance) -> Report:
    """Return the replay of a plan against its instance."""
    violations = [*_identity(plan, instance)]
    exposed: dict[str, float] = {}
    recompute = objective = math.nan
    used: dict[str, int] = {}
    if len(plan.boundaries) == instance.layers + 1:
        used = _used(plan, instance)
        exposed = check_transfers.exposed(plan, instance)
        recompute = _recompute(plan, instance)
        objective = recompute + _lambdas(plan, instance) + sum(exposed.values())
        violations += [*_budgets(used, instance), *_path(plan, instance)]
        violations += [*_fixed(plan, instance)]
        violations += [
            *check_transfers.transfers(plan, instance),
            *check_transfers.coupling(plan, instance),
        ]
        violations += [*check_execution.execution(plan, instance)]
        violations += [*check_order.cut(plan, instance)]
        violations += [*check_order.levels(plan, instance)]
        violations += [*_claims(plan, objective)]
    return Report(
        name=plan.name,
        plan_sha256=plan.sha256,
        instance_sha256=instance.sha256,
        violations=tuple(violations),
        objective_s=objective if math.isfinite(objective) else -1.0,
        recompute_s=recompute if math.isfinite(recompute) else -1.0,
        exposed_s=exposed,
        mandatory_exposed_s=check_transfers.mandatory(instance),
        used_bytes=used,
        budget_bytes=instance.budget_bytes.model_dump(),
        counts={home.value: plan.count(home) for home in Home},
    )


def _identity(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """The plan was made for this instance."""
    if plan.instance_sha256 != instance.sha256:
        yield Violation(
            kind="identity",
            detail=f"made for instance {plan.instance_sha256[:12]}, "
            f"not {instance.sha256[:12]}",
        )
    for field, given, wanted in (
        ("model", plan.model, instance.model),
        ("num_layers", plan.num_layers, instance.layers),
        ("layer_types", plan.layer_types, instance.layer_types),
    ):
        if given != wanted:
            yield Violation(kind="identity", detail=f"{field} is {given}, not {wanted}")
    sizes = zip(plan.boundaries, instance.boundary_bytes, strict=False)
    for i, (boundary, size) in enumerate(sizes):
        if boundary.size_bytes != size:
            detail = f"boundary {i} has {boundary.size_bytes} B, not {size} B"
            yield Violation(kind="size", detail=detail)
    run = instance.execution
    if run and (plan.batch, plan.seq_len) != (run.batch, run.seq_len):
        detail = f"batch {plan.batch} x {plan.seq_len}, not {run.batch} x {run.seq_len}"
        yield Violation(kind="identity", detail=detail)


def _used(plan: Plan, instance: Instance) -> dict[str, int]:
    """Add up the bytes of each tier, with the widest recomputed block if charged."""
    used = {"gpu": 0, "cpu": 0, "nvme": 0}
    for boundary, size in zip(plan.boundaries, instance.boundary_bytes, strict=True):
        if boundary.home != Home.RECOMPUTE:
            used[boundary.home.value] += size
    if instance.options.transient:
        used["gpu"] = _with_blocks(used["gpu"], plan, instance)
    return used


def _with_blocks(kept: int, plan: Plan, instance: Instance) -> int:
    """Add recomputed boundaries: the widest block, or at the worst moment."""
    sizes = instance.boundary_bytes
    inside = {b.start: sum(sizes[b.start + 1 : b.end]) for b in plan.blocks}
    if instance.options.memory == "static":
        return kept + max(inside.values(), default=0)
    alive = {
        start: sum(
            size
            for size, boundary in zip(
                sizes[: start + 1], plan.boundaries[: start + 1], strict=True
            )
            if boundary.home == Home.GPU
        )
        for start in inside
    }
    return max([kept, *(alive[start] + inside[start] for start in inside)])


def _budgets(used: dict[str, int], instance: Instance) -> Iterator[Violation]:
    """No tier holds more than its budget, to the byte."""
    for tier, size in used.items():
        budget: int = getattr(instance.budget_bytes, tier)
        if size > budget:
            detail = f"{tier} holds {size} B, {size - budget} B over its budget"
            yield Violation(kind="budget", detail=detail)


def _path(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Blocks join kept boundaries, none too long, each replayed layer by layer."""
    kept = [i for i, b in enumerate(plan.boundaries) if b.home != Home.RECOMPUTE]
    if [(b.start, b.end) for b in plan.blocks] != list(pairwise(kept)):
        yield Violation(kind="path", detail="blocks do not join the kept boundaries")
    for block in plan.blocks:
        if block.mode != "replay":
            detail = f"block ({block.start}, {block.end}) is {block.mode}: nothing"
            yield Violation(kind="path", detail=f"{detail} counts its graphs")
        if instance.max_block and block.end - block.start > instance.max_block:
            detail = f"block ({block.start}, {block.end}) exceeds {instance.max_block}"
            yield Violation(kind="max_block", detail=detail)


def _fixed(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Fixed choices are kept."""
    if instance.fixed.gpu is not None:
        there = {i for i, b in enumerate(plan.boundaries) if b.home == Home.GPU}
        moved = sorted(there ^ set(instance.fixed.gpu))
        if moved:
            detail = f"boundaries {moved} differ from the fixed GPU set"
            yield Violation(kind="fixed", detail=detail)
    path = {(block.start, block.end) for block in plan.blocks}
    for edge in instance.fixed.edges or ():
        if tuple(edge) not in path:
            yield Violation(kind="fixed", detail=f"fixed edge {edge} is not taken")


def _recompute(plan: Plan, instance: Instance) -> float:
    """Add up R_{s,e} over the plan's blocks (paper, Section 3.2)."""
    return sum(sum(instance.rho_s[b.start : b.end - 1]) for b in plan.blocks)


def _lambdas(plan: Plan, instance: Instance) -> float:
    """Add up the costs of keeping boundaries."""
    kept = plan.num_layers + 1 - plan.count(Home.RECOMPUTE)
    return (
        instance.lambda_z_s * kept
        + instance.lambda_c_s * plan.count(Home.CPU)
        + instance.lambda_n_s * plan.count(Home.NVME)
    )


def _claims(plan: Plan, objective: float) -> Iterator[Violation]:
    """The plan's own objective, bound and status agree with the replay."""
    solve = plan.solve
    if abs(solve.objective_s - objective) > TOLERANCE_S:
        detail = f"claims {solve.objective_s:.9f} s, replay gives {objective:.9f} s"
        yield Violation(kind="objective", detail=detail)
    if solve.status == "heuristic":
        return
    if solve.bound_s is None or solve.gap is None:
        yield Violation(kind="status", detail=f"{solve.status} without a bound or gap")
    elif solve.bound_s > objective + TOLERANCE_S:
        detail = f"bound {solve.bound_s:.9f} s lies above the objective"
        yield Violation(kind="status", detail=detail)
    elif solve.status == "optimal" and objective - solve.bound_s > TOLERANCE_S:
        detail = f"called optimal with bound {solve.bound_s:.9f} s"
        yield Violation(kind="status", detail=detail)
