"""The checker's rules on copies: what moves, when it may, and what of it is exposed.

As in :mod:`check`, sums are made here again from the two files alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan, Transfer
from lazytrain.schedule.violations import Violation

BYTE = 0.5


def transfers(plan: Plan, instance: Instance) -> Iterator[Violation]:
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


def coupling(plan: Plan, instance: Instance) -> Iterator[Violation]:
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


def exposed(plan: Plan, instance: Instance) -> dict[str, float]:
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


def mandatory(instance: Instance) -> dict[str, float]:
    """Return what weights and gradients alone expose, per link in seconds."""
    return {
        link: sum(max(0.0, m - c) for c, m in _lane(link, instance))
        / getattr(instance.bandwidth, link)
        for link in ("d2h", "h2d")
    }
