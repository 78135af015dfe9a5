"""How many wave-sized device buffers a plan needs beside the boundaries it keeps.

Boundaries whose home is not the GPU pass through a pool of buffers: while they are
produced and sent away, while they are fetched back, and while a block is replayed.
Planner and executor count them with this one function.
"""

from __future__ import annotations

from typing import Final

from lazytrain.schedule.plan import Home, Plan

# Optimizer state on NVMe moves in units of this many parameters, a whole number of
# 8-bit blocks: about 160 MiB of fp32 state.
UNIT_PARAMETERS: Final = 16 * 2**20
# Its staging pages: one unit is updated, two are read, one is written.
STATE_SLOTS: Final = 4
# Pinned host buffers that boundaries on their way to or from NVMe pass through.
BOUNCE_BUFFERS: Final = 3
# Those of gradients that wait in HBM: one is read by its update, one is on its way.
CONSUMED_BUFFERS: Final = 2


def staging_buffers(plan: Plan) -> int:
    """Return the number of staging buffers, each one wave of hidden states.

    Forward needs a layer's input, its output and one more that is still being sent;
    backward needs a block's start, its replayed interior and what is read ahead.
    """
    away = [i for i, home in enumerate(plan.homes) if home != Home.GPU]
    if not away:
        return 0
    fetched = any(home in (Home.CPU, Home.NVME) for home in plan.homes)
    widest = max(block.end - block.start - 1 for block in plan.blocks)
    ahead = plan.read_ahead_blocks + 1 if fetched else 0
    return max(3, widest + ahead + 1)
