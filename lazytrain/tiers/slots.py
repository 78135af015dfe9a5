"""Staging buffers that cannot be reused early: a slot comes back with its tickets.

Whoever takes a slot gets one whose transfers have all ended, or waits. There is no
other way to a buffer, so a late write is waited for and never overwritten.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.tiers.extents import round_up
from lazytrain.tiers.tier import Ticket

_POISON = 0xFF


def aligned_bytes(num_bytes: int) -> Tensor:
    """Return a flat uint8 host tensor that starts on a page, as O_DIRECT wants it."""
    memory = mmap.mmap(-1, max(round_up(num_bytes), 1))
    return torch.frombuffer(memory, dtype=torch.uint8)[:num_bytes]


class Slot:
    """One buffer of a ring, flat uint8."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.tickets: tuple[Ticket, ...] = ()


class SlotRing:
    """A fixed number of buffers of one size, allocated once.

    Args:
        num_slots: Buffers in the ring.
        slot_bytes: Size of each.
        allocate: Makes one buffer; pinned memory may be passed in this way.
        poison: Fill a slot with NaN bytes before it is lent again, so that whoever kept
            a view of it is found out.
    """

    def __init__(
        self,
        num_slots: int,
        slot_bytes: int,
        *,
        allocate: Callable[[int], Tensor] = aligned_bytes,
        poison: bool = False,
    ) -> None:
        if num_slots < 1:
            raise InvalidInput("num_slots", num_slots, "use at least 1")
        self.slot_bytes = slot_bytes
        self.host_bytes = num_slots * round_up(slot_bytes)
        self._poison = poison
        self._returned = deque(Slot(allocate(slot_bytes)) for _ in range(num_slots))
        self._change = threading.Condition()

    def take(self, timeout_s: float | None = None) -> Slot:
        """Lend the slot that was given back first, once its transfers have ended.

        Raises:
            StorageFault: If one of those transfers failed.
            TimeoutError: If no slot was given back within ``timeout_s`` seconds.
        """
        with self._change:
            if not self._change.wait_for(lambda: bool(self._returned), timeout_s):
                raise TimeoutError(f"no slot was given back within {timeout_s} s")
            slot = self._returned.popleft()
        return self._proven(slot)

    def take_if_quiet(self) -> Slot | None:
        """Lend a slot whose transfers have ended already; None if there is none.

        Raises:
            StorageFault: If one of those transfers failed.
        """
        with self._change:
            for slot in self._returned:
                if all(ticket.done() for ticket in slot.tickets):
                    self._returned.remove(slot)
                    break
            else:
                return None
        return self._proven(slot)

    def _proven(self, slot: Slot) -> Slot:
        """Return a slot once its transfers have ended well."""
        tickets, slot.tickets = slot.tickets, ()
        try:
            for ticket in tickets:
                ticket.wait()
        except BaseException:
            self.give_back(slot, *tickets)
            raise
        if self._poison:
            slot.buffer.fill_(_POISON)
        return slot

    def give_back(self, slot: Slot, *tickets: Ticket) -> None:
        """Return a slot that is free once ``tickets`` are done."""
        slot.tickets = tickets
        with self._change:
            self._returned.append(slot)
            self._change.notify()
