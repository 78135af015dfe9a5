"""Replay a plan against its instance without a solver.

Nothing here is shared with the program, the heuristics or the placement: sizes,
budgets, windows, exposure and objective are computed again from the two files alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field

from lazytrain.errors import LazyTrainError
from lazytrain.records import Contract
from lazytrain.schedule import check_execution, check_order
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan, Transfer
from lazytrain.schedule.violations import Violation

TOLERANCE_S = 1e-6
BYTE = 0.5


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
        exposed = _exposed(plan, instance)
        recompute = _recompute(plan, instance)
        objective = recompute + _lambdas(plan, instance) + sum(exposed.values())
        violations += [*_budgets(used, instance), *_path(plan, instance)]
        violations += [*_transfers(plan, instance), *_coupling(plan, instance)]
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
        mandatory_exposed_s=_mandatory(instance),
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
    """Blocks join kept boundaries, none too long; fixed choices are kept."""
    kept = [i for i, b in enumerate(plan.boundaries) if b.home != Home.RECOMPUTE]
    if [(b.start, b.end) for b in plan.blocks] != list(pairwise(kept)):
        yield Violation(kind="path", detail="blocks do not join the kept boundaries")
    for block in plan.blocks:
        if instance.max_block and block.end - block.start > instance.max_block:
            detail = f"block ({block.start}, {block.end}) exceeds {instance.max_block}"
            yield Violation(kind="max_block", detail=detail)
    if instance.fixed.gpu is not None:
        there = {i for i, b in enumerate(plan.boundaries) if b.home == Home.GPU}
        moved = sorted(there ^ set(instance.fixed.gpu))
        if moved:
            detail = f"boundaries {moved} differ from the fixed GPU set"
            yield Violation(kind="fixed", detail=detail)
    path = set(pairwise(kept))
    for edge in instance.fixed.edges or ():
        if tuple(edge) not in path:
            yield Violation(kind="fixed", detail=f"fixed edge {edge} is not taken")


def _transfers(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Each boundary moves exactly once over each link that its home needs."""
    seen = Counter((t.boundary, t.link) for t in plan.transfers)
    for i, boundary in enumerate(plan.boundaries):
        for link in ("d2h", "h2d", "nvme_write", "nvme_read"):
            needed = _needs(boundary.home, link)
            times = seen.pop((i, link), 0)
            if times != needed:
                detail = (
                    f"boundary {i} ({boundary.home.value}) moves {times} times over "
                    f"{link}, needs {needed}"
                )
                yield Violation(kind="transfer", detail=detail)
    for i, link in seen:
        detail = f"boundary {i} moves over {link} but does not exist"
        yield Violation(kind="transfer", detail=detail)
    for transfer in plan.transfers:
        yield from _one_transfer(transfer, plan, instance)


def _needs(home: Home, link: str) -> int:
    """Return how often a boundary with this home crosses a link."""
    if home == Home.NVME:
        return 1
    return int(home == Home.CPU and link in ("d2h", "h2d"))


def _one_transfer(
    transfer: Transfer, plan: Plan, instance: Instance
) -> Iterator[Violation]:
    """A copy moves every byte, within its windows, between its events."""
    i, link = transfer.boundary, transfer.link
    if not 0 <= i <= instance.layers:
        return
    amounts = transfer.window_bytes
    size = instance.boundary_bytes[i]
    if abs(sum(amounts.values()) - size) > BYTE:
        detail = f"{link} of boundary {i} moves {sum(amounts.values())} of {size} B"
        yield Violation(kind="bytes", detail=detail)
    first = _first_window(i, link, plan, instance)
    for window, amount in amounts.items():
        if not first <= window < instance.layers:
            detail = f"{link} of boundary {i} in window {window}, allowed {first}.."
            yield Violation(kind="window", detail=f"{detail}{instance.layers - 1}")
        if amount < 0:
            detail = f"{link} of boundary {i} moves {amount} B in window {window}"
            yield Violation(kind="bytes", detail=detail)
    wanted = _events(i, link, plan)
    if (transfer.release, transfer.deadline) != wanted:
        detail = (
            f"{link} of boundary {i} runs {transfer.release}..{transfer.deadline}, "
            f"not {wanted[0]}..{wanted[1]}"
        )
        yield Violation(kind="event", detail=detail)


def _block_end(i: int, plan: Plan) -> int:
    """Return the end of the block that boundary i starts, L if it starts none."""
    return next((b.end for b in plan.blocks if b.start == i), plan.num_layers)


def _first_window(i: int, link: str, plan: Plan, instance: Instance) -> int:
    """Return the first window in which a copy may move."""
    if link in ("d2h", "nvme_write"):
        return i
    late = {"paper": i, "layer": i + 1, "block": _block_end(i, plan)}
    return late[instance.options.read_deadline]


def _events(i: int, link: str, plan: Plan) -> tuple[str, str]:
    """Return the release and deadline that a copy must carry."""
    return {
        "d2h": (f"forward:{i}", "turn"),
        "nvme_write": (f"d2h:{i}", "turn"),
        "nvme_read": ("turn", f"h2d:{i}"),
        "h2d": ("turn", f"backward:{_block_end(i, plan) - 1}"),
    }[link]


def _coupling(plan: Plan, instance: Instance) -> Iterator[Violation]:
    """Under gds a byte crosses link and disk in one window."""
    if instance.options.nvme_coupling != "gds":
        return
    pieces = {(t.boundary, t.link): t.window_bytes for t in plan.transfers}
    for (i, disk), amounts in pieces.items():
        link = {"nvme_write": "d2h", "nvme_read": "h2d"}.get(disk)
        if link is None:
            continue
        other = pieces.get((i, "d2h" if link == "d2h" else "h2d"), {})
        for window in amounts.keys() | other.keys():
            if abs(amounts.get(window, 0.0) - other.get(window, 0.0)) > BYTE:
                detail = f"boundary {i}: {disk} and {link} differ in window {window}"
                yield Violation(kind="coupling", detail=detail)


def _lane(link: str, instance: Instance) -> list[tuple[float, int]]:
    """Return (capacity [bytes], mandatory bytes) per window of a link."""
    rate: float = getattr(instance.bandwidth, link)
    is_write = link in ("d2h", "nvme_write")
    windows = instance.window_write_s if is_write else instance.window_read_s
    mandatory: tuple[int, ...] = (0,) * instance.layers
    if link == "d2h":
        mandatory = instance.mandatory_d2h_bytes
    if link == "h2d":
        mandatory = instance.mandatory_h2d_bytes
    return [(rate * t, m) for t, m in zip(windows, mandatory, strict=True)]


def _exposed(plan: Plan, instance: Instance) -> dict[str, float]:
    """Add up Delta/B and eps/B per link from the plan's own window bytes."""
    load: dict[tuple[str, int], float] = defaultdict(float)
    for transfer in plan.transfers:
        for window, amount in transfer.window_bytes.items():
            load[transfer.link, window] += amount
    result = {}
    for link in ("d2h", "h2d", "nvme_write", "nvme_read"):
        over = 0.0
        for window, (capacity, mandatory) in enumerate(_lane(link, instance)):
            eps = max(0.0, load[link, window] + mandatory - capacity)
            over += eps - max(0.0, mandatory - capacity)
        result[link] = over / getattr(instance.bandwidth, link)
    return result


def _mandatory(instance: Instance) -> dict[str, float]:
    """Return what weights and gradients alone expose, per link in seconds."""
    return {
        link: sum(max(0.0, m - c) for c, m in _lane(link, instance))
        / getattr(instance.bandwidth, link)
        for link in ("d2h", "h2d")
    }


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
