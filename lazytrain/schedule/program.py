"""A built mixed-integer program: its variables by meaning, and its units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.windows import Link

Edges = dict[tuple[int, int], Any]
STORED = (Home.GPU, Home.CPU, Home.NVME)


@dataclass(frozen=True)
class Program:
    """A built model and where to read a schedule from it."""

    model: Any
    homes: Mapping[Home, Sequence[Any]]
    unit_s: float
    edges: Edges = field(default_factory=dict)
    carried: Mapping[tuple[Link, Home], Sequence[Any]] = field(default_factory=dict)
    carried_unit: float = 1.0
    widest: Any = None


def time_unit_s(instance: Instance) -> float:
    """Return the mean transition cost, the solver's unit of time."""
    mean = sum(instance.rho_s) / instance.layers
    return mean if mean > 0 else 1.0


def byte_unit(instance: Instance) -> float:
    """Return the largest boundary, the solver's unit of moved bytes."""
    return float(max(*instance.boundary_bytes, 1))


def common_divisor(instance: Instance) -> int:
    """Return the greatest common divisor of all boundary sizes."""
    return math.gcd(*instance.boundary_bytes) or 1


def is_equal(instance: Instance) -> bool:
    """Whether all boundaries have one size, so that counting them is enough."""
    return len(set(instance.boundary_bytes)) == 1
