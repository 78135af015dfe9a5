"""What a search for the largest batch leaves, typed."""

from __future__ import annotations

from pydantic import Field

from lazytrain.records import Contract


class BatchSearch(Contract):
    """``search.json``: which batches of a row took a full step, by probe.

    ``infeasible`` is the smallest batch that ran out of memory, None if none did: the
    largest feasible batch lies from ``feasible`` (0: no probe fitted) to below it. A
    probe that took longer than it may counts as one that did not fit. ``estimated`` is
    the batch that the bracket was laid around, None if it was typed in.
    """

    accelerator: str
    scale: str
    system: str
    low: int
    high: int
    estimated: int | None = None
    probes: dict[int, bool]
    feasible: int
    infeasible: int | None
    too_long: tuple[int, ...] = Field(
        default=(), description="probes that were ended after their time, not by memory"
    )
