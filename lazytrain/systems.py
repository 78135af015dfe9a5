"""Every system of the run sheet, once: what it is, and what plans its schedule.

A system is ours (an executor that runs a plan) or a rival. What an ablation leaves out
is a row here, not a branch somewhere else. Plain data, read by a Snakefile too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["lazytrain", "megatrain", "deepspeed", "resident"]
FIXED = "fixed-interval:4"


@dataclass(frozen=True)
class System:
    """One system of the run sheet.

    Attributes:
        name: As the sheet writes it.
        family: Whose engine runs it.
        method: The planner's method; empty for a system without a plan.
        optimizer: The type of optimizer it is bound to; empty: as configured.
        meaning: One line for people.
    """

    name: str
    family: Family
    method: str
    optimizer: str
    meaning: str

    @property
    def is_planned(self) -> bool:
        """Whether a plan is solved and checked for it."""
        return bool(self.method)

    @property
    def is_streaming(self) -> bool:
        """Whether our own executor runs it."""
        return self.family == "lazytrain"


# In the order of the tables: the paper's rivals, those it omits, then ours.
ALL = (
    System(
        "zero3-offload",
        "deepspeed",
        "",
        "deepspeed_adam",
        "DeepSpeed ZeRO-3, optimizer and parameters on the host",
    ),
    System(
        "zero3-offload-liger",
        "deepspeed",
        "",
        "deepspeed_adam",
        "the same with Liger's kernels, head and loss fused",
    ),
    System(
        "zero-infinity",
        "deepspeed",
        "",
        "deepspeed_adam",
        "DeepSpeed ZeRO-3, optimizer and parameters on NVMe",
    ),
    System(
        "resident",
        "resident",
        "",
        "cpu_adamw_8bit",
        "no offload: everything in HBM, 8-bit state, layers recomputed, chunked loss",
    ),
    System(
        "resident-no-recompute",
        "resident",
        "",
        "cpu_adamw_8bit",
        "the same with every activation kept, at a smaller batch",
    ),
    System(
        "megatrain",
        "megatrain",
        FIXED,
        "deepspeed_adam",
        "MegaTrain's step as it is: a checkpoint every 4 layers, 5 forwards",
    ),
    System(
        "megatrain-single-recompute",
        "megatrain",
        FIXED,
        "deepspeed_adam",
        "the same without the redundant pass: 4 forwards",
    ),
    System(
        "megatrain-milp",
        "megatrain",
        "milp",
        "deepspeed_adam",
        "MegaTrain's step on planned checkpoints in HBM, replaying only what the plan"
        " omits",
    ),
    System(
        "megatrain-hybrid8bit",
        "megatrain",
        FIXED,
        "hybrid_adamw_8bit",
        "MegaTrain's step with the Hybrid 8-bit operator: fast clip, 2 % 8-bit state",
    ),
    System("lazytrain", "lazytrain", "milp", "", "planner and hybrid 8-bit state"),
    System(
        "lazytrain-no-milp",
        "lazytrain",
        FIXED,
        "",
        "our executor on MegaTrain's fixed schedule, hybrid 8-bit state",
    ),
    System(
        "lazytrain-no-hybrid8bit",
        "lazytrain",
        "milp",
        "adamw",
        "our executor and planner, fp32 state only",
    ),
    System(
        "lazytrain-8bit",
        "lazytrain",
        "milp",
        "cpu_adamw_8bit",
        "our executor and planner, all state in 8 bits",
    ),
)
BY_NAME = {system.name: system for system in ALL}
NAMES = tuple(BY_NAME)


def names(family: Family) -> tuple[str, ...]:
    """Return the systems of one family, in the tables' order."""
    return tuple(system.name for system in ALL if system.family == family)


def is_planned(name: str) -> bool:
    """Whether a system of the sheet runs a plan; an unknown name does not."""
    return name in BY_NAME and BY_NAME[name].is_planned
