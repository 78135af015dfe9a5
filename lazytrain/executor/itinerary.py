"""In which order parts need their weights, and in which slot each one arrives.

The order of a step follows from the plan alone: embedding, layers forward, head, then
per block, last first, the layers that are replayed and the layers that go back. Slots
are assigned once per plan; a layer that is still in its slot is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lazytrain.models.decoder import EMBEDDING, HEAD, layer_part
from lazytrain.schedule.plan import Block, Plan

Action = Literal["forward", "loss", "replay", "backward"]
Visit = tuple[str, Action]


@dataclass(frozen=True)
class Stop:
    """One use of a part's weights.

    Attributes:
        position: Index in the step's order of uses.
        part: Name of the part.
        action: What the part does there.
        slot: Ring slot that holds the part; -1 for a resident part.
        upload: Whether the weights must cross the link for this use.
        after: Position that must be finished before the upload may start, or -1 for
            the end of the step before.
        first: Whether this is the part's first upload in the step.
    """

    position: int
    part: str
    action: Action
    slot: int
    upload: bool
    after: int
    first: bool


def replayed_layers(block: Block) -> range:
    """Return the layers a block runs forward again before it goes back.

    A replayed block stops before its last layer, whose output nobody reads; a fused
    block runs all its layers again, with graphs, unless it is a single layer.
    """
    is_fused = block.mode == "fused" and block.end > block.start + 1
    return range(block.start, block.end if is_fused else block.end - 1)


def block_visits(block: Block) -> list[Visit]:
    """Return the layers one backward block runs, in order."""
    replayed: list[Visit] = [(layer_part(i), "replay") for i in replayed_layers(block)]
    back: list[Visit] = [
        (layer_part(i), "backward") for i in reversed(range(block.start, block.end))
    ]
    return replayed + back


def forward_visits(num_layers: int) -> list[Visit]:
    """Return the uses of a forward pass up to the loss."""
    layers: list[Visit] = [(layer_part(i), "forward") for i in range(num_layers)]
    return [(EMBEDDING, "forward"), *layers, (HEAD, "loss")]


def step_visits(plan: Plan, waves: int) -> list[Visit]:
    """Return every use of a part in a step of ``waves`` passes, in order."""
    backward = [
        visit for block in reversed(plan.blocks) for visit in block_visits(block)
    ]
    return (forward_visits(plan.num_layers) + backward) * waves


class _Ring:
    """Which layer each slot holds, while slots are being assigned."""

    def __init__(self, slots: int) -> None:
        self.held: dict[str, int] = {}
        self.last_use = dict.fromkeys(range(slots), -1)

    def place(self, part: str) -> tuple[int, bool]:
        """Return the part's slot and whether it must be sent there."""
        if part in self.held:
            return self.held[part], False
        slot = min(self.last_use, key=lambda s: (self.last_use[s], s))
        self.held = {p: s for p, s in self.held.items() if s != slot}
        self.held[part] = slot
        return slot, True


def itinerary(
    visits: list[Visit], resident: frozenset[str], *, slots: int, distance: int
) -> tuple[Stop, ...]:
    """Assign slots to the uses of a step.

    Args:
        visits: Uses in order.
        resident: Parts with a buffer of their own, sent once a step.
        slots: Slots of the ring.
        distance: Uses that an upload may run ahead of the one that computes.

    Returns:
        One stop per use. An upload may start once ``after`` is finished: the slot is
        then free, and at most ``distance`` uses are ahead.
    """
    ring = _Ring(slots)
    seen: set[str] = set()
    stops = []
    for position, (part, action) in enumerate(visits):
        after = position - 1 - distance
        if part in resident:
            slot, upload = -1, part not in seen
        else:
            slot, upload = ring.place(part)
            after = max(after, ring.last_use[slot])
            ring.last_use[slot] = position
        first = upload and part not in seen
        seen.add(part)
        stop = Stop(position, part, action, slot, upload, max(after, -1), first)
        stops.append(stop)
    return tuple(stops)
