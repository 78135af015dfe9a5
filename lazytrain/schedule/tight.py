"""A measured instance with less memory, and what NVMe boundaries then do per window.

The paper's NVMe case (Table 7, Figure 4) has one boundary on disk because HBM and DRAM
are full. A machine with more memory than its model needs shows nothing of that kind;
with budgets of a few boundaries each it does, at its own measured times and rates.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final

from lazytrain.errors import InvalidInput
from lazytrain.schedule.instance import Budget, Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.windows import LINKS, WRITES, Link, channel

COLUMNS: Final = (
    "boundary",
    "transfer",
    "phase",
    "window",
    "window_ms",
    "window_GB",
    "moved_GB",
    "all_GB",
    "verdict",
)


def tighten(
    instance: Instance,
    gpu: int | None = None,
    cpu: int | None = None,
    nvme: int | None = None,
) -> Instance:
    """Return the instance with budgets for so many boundaries per tier.

    Args:
        instance: A derived instance; times, rates and everything else stay.
        gpu: Boundaries, recomputed ones included, that HBM may hold beside what every
            layer keeps anyway; None takes twice the square root of the layers, which
            any schedule of even blocks needs.
        cpu: Boundaries in DRAM; None takes two.
        nvme: Boundaries on disk; None keeps the budget.

    Raises:
        InvalidInput: If a count is negative or asks for more than the machine has.
    """
    size = max(instance.boundary_bytes)
    room = {
        tier: held // size for tier, held in instance.room_bytes.model_dump().items()
    }
    even = math.ceil(2 * math.sqrt(instance.layers))
    wanted = {
        "gpu": min(even, room["gpu"]) if gpu is None else gpu,
        "cpu": min(2, room["cpu"]) if cpu is None else cpu,
        "nvme": room["nvme"] if nvme is None else nvme,
    }
    for tier, count in wanted.items():
        if not 0 <= count <= room[tier]:
            remedy = f"choose from 0 to {room[tier]}, which the budget holds"
            raise InvalidInput(f"{tier}-boundaries", count, remedy)
    text = " ".join(f"{tier[0].upper()}{count}" for tier, count in wanted.items())
    accelerator, scale = _whose(instance)
    budget = {tier: count * size for tier, count in wanted.items()}
    budget["gpu"] += instance.base_kept_bytes
    return instance.model_copy(
        update={
            "name": f"{accelerator}/{scale} {text}",
            "budget_bytes": Budget.model_validate(budget),
            # Order and waves were chosen for other budgets.
            "chosen": "",
        }
    )


def _whose(instance: Instance) -> tuple[str, str]:
    """Return accelerator and scale from an instance's name, empty if it has none."""
    accelerator, slash, rest = instance.name.partition("/")
    scale = re.split("[/ ]", rest)[0]
    return (accelerator, scale) if slash else ("", accelerator)


def window_rows(plan: Plan, instance: Instance) -> list[dict[str, str]]:
    """Return one row per window and link that an NVMe boundary uses (Table 7).

    ``window_GB`` is what the link can carry beside mandatory traffic, ``moved_GB`` the
    boundary's share and ``all_GB`` that of all boundaries together. A plan without such
    a boundary gives one row that says so.
    """
    accelerator, scale = _whose(instance)
    who = {"accelerator": accelerator, "scale": scale, "model": plan.model}
    if not plan.count(Home.NVME):
        nothing = dict.fromkeys(COLUMNS, "") | {"boundary": "none"}
        return [who | nothing | {"verdict": "other homes cost less"}]
    loads = _loads(plan)
    rows = []
    for transfer in plan.transfers:
        if plan.homes[transfer.boundary] != Home.NVME:
            continue
        lane = channel(instance, transfer.link)
        for window, amount in transfer.window_bytes.items():
            room, load = lane.slack_bytes[window], loads[transfer.link, window]
            rows.append(
                who
                | {
                    "boundary": str(transfer.boundary),
                    "transfer": transfer.link,
                    "phase": "forward" if transfer.link in WRITES else "backward",
                    "window": str(window),
                    "window_ms": f"{lane.window_s[window] * 1e3:.1f}",
                    "window_GB": f"{room / 1e9:.4f}",
                    "moved_GB": f"{amount / 1e9:.4f}",
                    "all_GB": f"{load / 1e9:.4f}",
                    "verdict": "fits" if load <= room + 1 else "exposed",
                }
            )
    return sorted(rows, key=_order)


def _order(row: dict[str, str]) -> tuple[int, int, int]:
    """Sort by boundary, then by the way it takes, then by time."""
    names: list[str] = ["d2h", "nvme_write", "nvme_read", "h2d"]
    window = int(row["window"])
    # The backward comes to the last layers first.
    moment = window if row["phase"] == "forward" else -window
    return int(row["boundary"]), names.index(row["transfer"]), moment


def _loads(plan: Plan) -> dict[tuple[Link, int], float]:
    """Return the bytes of all boundaries per link and window."""
    loads: dict[tuple[Link, int], float] = defaultdict(float)
    for transfer in plan.transfers:
        assert transfer.link in LINKS
        for window, amount in transfer.window_bytes.items():
            loads[transfer.link, window] += amount
    return loads
