"""Choose one schedule among equally good ones, so that plans are canonical.

Ties are common: boundaries of one size are interchangeable. Among schedules of the same
objective this prefers the faster tier, and slow tiers for the boundaries that are
written first and read last, which is the order that leaves links the most time.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazytrain.schedule.heuristics import fits
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Home
from lazytrain.schedule.windows import is_admissible, place

# Below the 1e-6 s to which objectives are compared.
TIE_S = 1e-9
SLOWEST_FIRST = (Home.NVME, Home.CPU, Home.GPU)


def settle(instance: Instance, homes: Sequence[Home]) -> list[Home]:
    """Return the canonical schedule of the same objective or a lower one."""
    if instance.fixed.is_empty:
        homes = _keep_if_no_worse(instance, homes, _slowest_first(instance, homes))
    for i, home in enumerate(homes):
        for faster in reversed(SLOWEST_FIRST):
            if faster == home or home == Home.RECOMPUTE:
                break
            if instance.fixed.gpu is not None and Home.GPU in (faster, home):
                continue
            trial = [*homes[:i], faster, *homes[i + 1 :]]
            if _is_no_worse(instance, homes, trial):
                homes = trial
                break
    return list(homes)


def _slowest_first(instance: Instance, homes: Sequence[Home]) -> list[Home]:
    """Reorder the homes of kept boundaries: NVMe, then CPU, then GPU."""
    kept = [i for i, home in enumerate(homes) if home != Home.RECOMPUTE]
    order = sorted((homes[i] for i in kept), key=SLOWEST_FIRST.index)
    result = list(homes)
    for i, home in zip(kept, order, strict=True):
        result[i] = home
    return result


def _keep_if_no_worse(
    instance: Instance, homes: Sequence[Home], trial: Sequence[Home]
) -> Sequence[Home]:
    """Return the trial if it is allowed and no worse."""
    return trial if _is_no_worse(instance, homes, trial) else homes


def _is_no_worse(
    instance: Instance, homes: Sequence[Home], trial: Sequence[Home]
) -> bool:
    """Whether a trial is allowed and its objective is not above the other's."""
    if not fits(instance, trial) or not is_admissible(instance, trial):
        return False
    return _value(instance, trial) <= _value(instance, homes) + TIE_S


def _value(instance: Instance, homes: Sequence[Home]) -> float:
    """Return the objective with transfers placed first in first out."""
    return terms(instance, homes, place(instance, homes)).total_s
