"""Counting what must not be done twice, while it is really done."""

from __future__ import annotations

from collections import Counter

import pytest

from lazytrain.schedule import solve as solver
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.solve import Limits


def counted_solves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the real solves of each problem, by its hash, from now on."""
    counts: Counter[str] = Counter()
    real = solver.solve_milp

    def counted(instance: Instance, limits: Limits, method: str = "milp") -> Plan:
        counts[instance.sha256] += 1
        return real(instance, limits, method)

    monkeypatch.setattr(solver, "solve_milp", counted)
    return counts
