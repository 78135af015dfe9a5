"""Optimizer state on NVMe: in which units it moves, and the memory that takes.

The one home of these figures: the executor cuts units by them, the planner counts
staging memory and disk traffic with them.
"""

from __future__ import annotations

from typing import Final

# Parameters of one unit: a whole number of 8-bit blocks, about 160 MiB of fp32 state.
UNIT_PARAMETERS: Final = 16 * 2**20
# Staging pages: one being updated, two being read, one being written.
STATE_SLOTS: Final = 4
