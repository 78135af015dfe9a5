"""Lines on stderr while host memory is being taken: it can last for minutes.

A virtual machine that grows its memory as it is touched takes seconds for a gigabyte.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from lazytrain.units import format_bytes

SAID_EVERY_S: Final = 5.0


class Filling:
    """Says every few seconds how far the taking of memory has come.

    What is done within the first seconds is done in silence.

    Args:
        total_bytes: What will be taken in all.
        clock: Seconds, for tests.
    """

    def __init__(
        self, total_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_bytes = total_bytes
        self._clock = clock
        self._start = self._said = clock()
        self._done = 0

    def add(self, size_bytes: int) -> None:
        """Count memory that is there now, and write a line if one is due."""
        self._done += size_bytes
        now = self._clock()
        is_last = self._done >= self._total_bytes and self._said > self._start
        if now - self._said < SAID_EVERY_S and not is_last:
            return
        self._said = now
        sys.stderr.write(
            f"host memory: {format_bytes(self._done)} of "
            f"{format_bytes(self._total_bytes)} ready after {now - self._start:.0f} s\n"
        )
        sys.stderr.flush()
