"""Errors a user can act on: each message names the field, the value and the remedy."""

from __future__ import annotations

import errno

MOST_SHOWN = 200  # characters of a wrong value


class LazyTrainError(Exception):
    """Base of every error that is the user's to mend; the CLI prints it bare."""


class InvalidInput(LazyTrainError):
    """A value given by the user cannot be used."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        shown = repr(value)
        if len(shown) > MOST_SHOWN:  # a whole file, say: its remedy must stay in sight
            shown = f"{shown[:MOST_SHOWN]}..."
        super().__init__(f"{field} = {shown}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class DoesNotFit(InvalidInput):
    """A step needs more of a memory tier than there is, whatever the schedule."""


class MissingExtra(LazyTrainError):
    """An optional package is needed and not installed."""

    def __init__(self, extra: str, why: str) -> None:
        super().__init__(f"{why}: install it with `pip install 'lazytrain[{extra}]'`")
        self.extra = extra


class PlanMismatch(LazyTrainError):
    """A plan was made for another model, batch or machine than the one at hand."""


class NoSchedule(LazyTrainError):
    """The solver ended without any schedule (limit reached or infeasible)."""


class SolverMissing(LazyTrainError):
    """The solver's package is not installed: that says nothing about schedules."""


class OutOfMemory(LazyTrainError):
    """A memory tier cannot hold what was asked of it.

    Args:
        tier: ``gpu``, ``host`` or ``pinned``.
        requested_bytes: Size of the request that failed.
        detail: What asked, what is there and what to change.
    """

    def __init__(self, tier: str, requested_bytes: int, detail: str) -> None:
        super().__init__(
            f"out of {tier} memory ({requested_bytes:,} B asked): {detail}"
        )
        self.tier = tier
        self.requested_bytes = requested_bytes


def is_disk_full(error: OSError) -> bool:
    """Say whether a disk, or a user's share of it, had no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
