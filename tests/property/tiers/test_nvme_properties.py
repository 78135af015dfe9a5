"""Any order of puts, fetches and releases on a misbehaving disk behaves as a dict."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lazytrain.tiers.extents import ALIGN_BYTES, Extents, round_up
from lazytrain.tiers.file_layer import FileLayer
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import TierFull

CHUNK = 4096
CAPACITY = 16 * CHUNK
KEYS = st.sampled_from("abcde")
SIZES = st.sampled_from([0, 1, 511, 513, 4095, 4096, 4097, 9000, 20_000])


class ErraticLayer(FileLayer):
    """Short, late transfers: whole blocks, up to a millisecond."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _part(self, buffer: memoryview) -> memoryview:
        time.sleep(self._random.random() * 0.001)
        blocks = buffer.nbytes // ALIGN_BYTES
        return buffer[: self._random.randint(1, blocks) * 4096] if blocks else buffer

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        return super().read(descriptor, self._part(buffer), offset)

    def write(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        return super().write(descriptor, self._part(buffer), offset)


class TierIsADict(RuleBasedStateMachine):
    """Tickets are waited for at random times, buffers poisoned as soon as allowed."""

    @initialize(seed=st.integers(0, 1 << 16), num_threads=st.integers(1, 4))
    def open(self, seed, num_threads):
        self.folder = tempfile.TemporaryDirectory()
        self.tier = NvmeTier(
            Path(self.folder.name),
            CAPACITY,
            chunk_bytes=CHUNK,
            num_threads=num_threads,
            layer=ErraticLayer(seed),
        )
        self.model: dict[str, torch.Tensor] = {}
        self.writes = []
        self.reads = []
        self.count = seed

    @rule(key=KEYS, size=SIZES)
    def put(self, key, size):
        self.count += 1
        generator = torch.Generator().manual_seed(self.count)
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        try:
            ticket = self.tier.put(key, data)
        except TierFull:
            return
        self.model[key] = data.clone()
        self.writes.append((ticket, data))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fetch(self, data):
        key = data.draw(st.sampled_from(sorted(self.model)))
        out = torch.full_like(self.model[key], 0xAA)
        self.reads.append((self.tier.fetch(key, out), out, self.model[key]))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.tier.release(key)
        del self.model[key]

    @rule()
    def settle(self):
        for ticket, data in self.writes:
            ticket.wait()
            data.fill_(0xFF)
        for ticket, out, expected in self.reads:
            ticket.wait()
            assert torch.equal(out, expected)
        self.writes, self.reads = [], []

    @invariant()
    def space_is_what_the_keys_take(self):
        if hasattr(self, "model"):
            taken = sum(round_up(value.numel()) for value in self.model.values())
            assert self.tier.used_bytes == taken

    def teardown(self):
        if hasattr(self, "tier"):
            self.settle()
            self.tier.close()
            assert list(Path(self.folder.name).iterdir()) == []
            self.folder.cleanup()


TestTierIsADict = TierIsADict.TestCase
TestTierIsADict.settings = settings(max_examples=40, stateful_step_count=25)


@settings(max_examples=150)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30_000)), max_size=40),
)
def test_extents_never_overlap_and_all_space_returns(blocks, requests):
    capacity = blocks * ALIGN_BYTES
    extents = Extents(capacity)
    taken = []
    for is_take, number in requests:
        if is_take:
            extent = extents.take(number)
            if extent is None:
                assert round_up(number) > extents.largest_bytes()
                continue
            assert extent.offset % ALIGN_BYTES == 0
            assert number <= extent.size_bytes < number + ALIGN_BYTES
            assert extent.end <= capacity
            for other in taken:
                assert (
                    extent.size_bytes == 0
                    or other.size_bytes == 0
                    or extent.end <= other.offset
                    or other.end <= extent.offset
                )
            taken.append(extent)
        elif taken:
            extents.give_back(taken.pop(number % len(taken)))
        used = sum(extent.size_bytes for extent in taken)
        assert extents.free_bytes == capacity - used
    for extent in taken:
        extents.give_back(extent)
    assert extents.largest_bytes() == extents.free_bytes == capacity
