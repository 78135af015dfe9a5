"""The NVMe tier of one run: as large as its plan needs, closed with its engine."""

from __future__ import annotations

from typing import Any, cast

from lazytrain.executor.protocol import Engine
from lazytrain.profile.setup import EngineSetup
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.state_home import reserved_bytes
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.units import MIB


def tier_for(setup: EngineSetup, plan: Plan) -> NvmeTier | None:
    """Return the tier that a plan needs, its space reserved; None if it needs none.

    Raises:
        InvalidInput: If the scratch folder or the backend cannot be used.
        TierFull: If the disk has not enough space.
    """
    needed = nvme_bytes(plan)
    if not needed:
        return None
    return NvmeTier(
        setup.scratch,
        needed,
        backend=setup.nvme.backend,
        verify=setup.nvme.verify,
        num_threads=setup.nvme.threads,
    )


def nvme_bytes(plan: Plan) -> int:
    """Return the bytes that a plan puts on disk, with room for rounding."""
    spilled = [b.size_bytes + MIB for b in plan.boundaries if b.home == Home.NVME]
    return sum(spilled) + reserved_bytes(plan)


class _WithTier:
    """An engine together with the NVMe tier that only it uses."""

    def __init__(self, engine: Engine, tier: NvmeTier) -> None:
        self._engine = engine
        self._tier = tier
        self.nvme = tier.describe()

    def __getattr__(self, name: str) -> Any:
        """Hand everything but closing to the engine."""
        return getattr(self._engine, name)

    def close(self) -> None:
        """Close the engine, then the tier it used."""
        try:
            self._engine.close()
        finally:
            self._tier.close()


def with_tier(engine: Engine, tier: NvmeTier) -> Engine:
    """Return an engine that closes its tier with itself, and describes it."""
    owner: Any = _WithTier(engine, tier)
    return cast("Engine", owner)
