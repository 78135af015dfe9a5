"""The paper's objective for a given schedule (Section 3.5), without a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home
from lazytrain.schedule.windows import Placement, exposed_s


@dataclass(frozen=True)
class Terms:
    """The objective's parts, in seconds."""

    recompute_s: float
    storage_s: float
    exposed_s: dict[str, float]

    @property
    def total_s(self) -> float:
        """The objective."""
        return self.recompute_s + self.storage_s + sum(self.exposed_s.values())


def terms(instance: Instance, homes: Sequence[Home], placement: Placement) -> Terms:
    """Return the objective of homes with their transfers placed.

    Omitting an interior boundary ``i`` costs ``rho_{i-1}``: over a path the block
    costs ``R_{s,e}`` add up to exactly that.
    """
    recompute = sum(
        instance.rho_s[i - 1] for i, home in enumerate(homes) if home == Home.RECOMPUTE
    )
    stored = sum(storage_cost_s(instance, home) for home in homes)
    return Terms(recompute, stored, exposed_s(instance, placement))


def storage_cost_s(instance: Instance, home: Home) -> float:
    """Return the lambda terms of one boundary with this home."""
    if home == Home.RECOMPUTE:
        return 0.0
    extra = {Home.NVME: instance.lambda_n_s, Home.CPU: instance.lambda_c_s}
    return instance.lambda_z_s + extra.get(home, 0.0)
