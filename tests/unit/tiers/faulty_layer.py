"""File layers that misbehave on purpose."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lazytrain.tiers.extents import ALIGN_BYTES
from lazytrain.tiers.file_layer import FileLayer


class ShortLayer(FileLayer):
    """Moves fewer bytes than asked, in whole multiples of ``unit``."""

    def __init__(self, seed: int, unit: int) -> None:
        self._random = random.Random(seed)
        self._unit = unit
        self.num_short = 0

    def _cut_bytes(self, num_bytes: int) -> int:
        units = num_bytes // self._unit
        if units < 2 or self._random.random() < 0.3:
            return num_bytes
        self.num_short += 1
        return self._random.randint(1, units - 1) * self._unit

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        cut = self._cut_bytes(buffer.nbytes)
        # The kernel itself refuses a length inside a block: move whole blocks.
        whole = -(-cut // ALIGN_BYTES) * ALIGN_BYTES
        return min(cut, super().read(descriptor, buffer[:whole], offset))

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        cut = self._cut_bytes(buffer.nbytes)
        whole = -(-cut // ALIGN_BYTES) * ALIGN_BYTES
        return min(cut, super().write(descriptor, buffer[:whole], offset))


class StuckLayer(FileLayer):
    """Calls of one kind move nothing."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if self._verb == "read":
            return 0
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if self._verb == "write":
            return 0
        return super().write(descriptor, buffer, offset)


class ErrorLayer(FileLayer):
    """Raises an OSError where ``should_fail(verb)`` says so, once it is armed."""

    def __init__(self, number: int, *verbs: str, is_armed: bool = True) -> None:
        self._number = number
        self._verbs = verbs
        self.is_armed = is_armed

    def _check(self, verb: str) -> None:
        if self.is_armed and verb in self._verbs:
            raise OSError(self._number, os.strerror(self._number))

    def open(self, path: Path, flags: int, mode: int) -> int:
        self._check("open-direct" if flags & os.O_DIRECT else "open")
        return super().open(path, flags, mode)

    def reserve(self, descriptor: int, num_bytes: int) -> None:
        self._check("reserve")
        super().reserve(descriptor, num_bytes)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._check("read")
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._check("write")
        return super().write(descriptor, buffer, offset)


class UnalignedMemoryLayer(FileLayer):
    """The kernel cannot pin the caller's memory: EFAULT for what is not ``known``."""

    def __init__(self, foreign: Callable[[memoryview], bool]) -> None:
        self._foreign = foreign
        self.num_refused = 0

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if self._foreign(buffer):
            self.num_refused += 1
            raise OSError(14, "Bad address")
        return super().write(descriptor, buffer, offset)


class LyingLayer(FileLayer):
    """Reports writes as done that never happen, or happen elsewhere."""

    def __init__(self, shift: int | None) -> None:
        self._shift = shift
        self.is_armed = False

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if not self.is_armed:
            return super().write(descriptor, buffer, offset)
        if self._shift is not None:
            super().write(descriptor, buffer, offset + self._shift)
        return buffer.nbytes


class GateLayer(FileLayer):
    """Holds reads or writes until their gate opens, and keeps a log of calls."""

    def __init__(self) -> None:
        self.gates = {"read": threading.Event(), "write": threading.Event()}
        for gate in self.gates.values():
            gate.set()
        self.log: list[tuple[str, int]] = []
        self.entered = threading.Semaphore(0)

    def _pass(self, verb: str, offset: int) -> None:
        self.entered.release()
        assert self.gates[verb].wait(120), "the test forgot to open the gate"
        self.log.append((verb, offset))

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._pass("read", offset)
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._pass("write", offset)
        return super().write(descriptor, buffer, offset)


class SlowLayer(FileLayer):
    """Delays each call by a random time up to ``most_s``: completions change order."""

    def __init__(self, seed: int, most_s: float, least_s: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._range = (least_s, most_s)

    def _delay(self) -> None:
        time.sleep(self._random.uniform(*self._range))

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._delay()
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._delay()
        # The late half of a write is where an early reuse would show.
        half = buffer.nbytes // 8192 * 4096
        if not half:
            return super().write(descriptor, buffer, offset)
        done = super().write(descriptor, buffer[:half], offset)
        self._delay()
        return done + super().write(descriptor, buffer[half:], offset + half)


class KillLayer(FileLayer):
    """Ends the process by SIGKILL at its n-th call; a write is cut in half first."""

    def __init__(self, at_call: int) -> None:
        self._left = at_call
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        return self._left

    def _is_last(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0

    def open(self, path: Path, flags: int, mode: int) -> int:
        if self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().open(path, flags, mode)

    def reserve(self, descriptor: int, num_bytes: int) -> None:
        if self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        super().reserve(descriptor, num_bytes)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(descriptor, buffer, offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if self._is_last():
            super().write(descriptor, buffer[: buffer.nbytes // 8192 * 4096], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(descriptor, buffer, offset)
