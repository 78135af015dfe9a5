"""Nothing is read before it is written, nothing reused before it is durable."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest
import torch
from faulty_layer import GateLayer, SlowLayer

from lazytrain.tiers.extents import ALIGN_BYTES, Extents
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.slots import SlotRing
from lazytrain.tiers.tier import StorageFault

CHUNK = 8192


def filled(value, num_bytes=2 * CHUNK):
    return torch.full((num_bytes,), value, dtype=torch.uint8)


@pytest.fixture
def layer():
    return GateLayer()


@pytest.fixture
def tier(tmp_path, layer):
    # More threads than chunks: only the order between transfers can hold one back.
    with NvmeTier(
        tmp_path, 4 * CHUNK, chunk_bytes=CHUNK, num_threads=9, layer=layer
    ) as opened:
        layer.log.clear()
        yield opened


def test_a_fetch_waits_for_the_unfinished_put_of_its_key(tier, layer):
    layer.gates["write"].clear()
    write, out = tier.put("a", filled(3)), filled(0)
    read = tier.fetch("a", out)
    with pytest.raises(TimeoutError, match="still running"):
        read.wait(0.05)
    assert not write.done()
    layer.gates["write"].set()
    read.wait()
    assert torch.equal(out, filled(3))
    assert [verb for verb, _ in layer.log] == ["write", "write", "read", "read"]


def test_a_put_waits_for_every_unfinished_fetch_of_its_key(tier, layer):
    tier.put("a", filled(1)).wait()
    layer.gates["read"].clear()
    outs = [filled(0), filled(0)]
    reads = [tier.fetch("a", out) for out in outs]
    write = tier.put("a", filled(2))
    with pytest.raises(TimeoutError):
        write.wait(0.05)
    layer.gates["read"].set()
    write.wait()
    for read, out in zip(reads, outs, strict=True):
        read.wait()
        assert torch.equal(out, filled(1))
    tier.fetch("a", outs[0]).wait()
    assert torch.equal(outs[0], filled(2))


def test_released_space_is_not_written_while_its_reader_still_reads(tier, layer):
    tier.put("a", filled(1, 4 * CHUNK)).wait()
    layer.gates["read"].clear()
    out = filled(0, 4 * CHUNK)
    read = tier.fetch("a", out)
    tier.release("a")
    write = tier.put("b", filled(9, 4 * CHUNK))  # fits only where "a" was
    with pytest.raises(TimeoutError):
        write.wait(0.05)
    layer.gates["read"].set()
    read.wait()
    assert torch.equal(out, filled(1, 4 * CHUNK))
    write.wait()


def test_released_space_is_not_written_while_its_writer_still_writes(tier, layer):
    layer.gates["write"].clear()
    tier.put("a", filled(1, 4 * CHUNK))
    tier.release("a")
    halves = [tier.put(key, filled(5, 2 * CHUNK)) for key in "bc"]
    layer.gates["write"].set()
    for half in halves:
        half.wait()
    out = filled(0)
    for key in "bc":
        tier.fetch(key, out).wait()
        assert torch.equal(out, filled(5))


def test_joined_space_waits_for_the_transfers_of_both_its_parts():
    extents = Extents(4 * ALIGN_BYTES)
    pieces = [extents.take(ALIGN_BYTES) for _ in range(4)]
    running = [Future(), Future(), Future()]
    for piece, future in zip((pieces[0], pieces[2], pieces[1]), running, strict=True):
        piece.busy = [future]
        extents.give_back(piece)
    joined = extents.take(3 * ALIGN_BYTES)
    assert joined.offset == 0
    assert set(joined.busy) == set(running)


def test_other_keys_pass_a_stuck_one(tmp_path):
    """A stuck transfer occupies its own thread and nobody else's turn."""
    layer = GateLayer()
    with NvmeTier(
        tmp_path, 8 * CHUNK, chunk_bytes=CHUNK, num_threads=2, layer=layer
    ) as tier:
        tier.put("b", filled(4, CHUNK)).wait()
        layer.gates["write"].clear()
        stuck = tier.put("a", filled(1, CHUNK))
        behind = [tier.fetch("a", filled(0, CHUNK)) for _ in range(8)]
        out = filled(0, CHUNK)
        tier.fetch("b", out).wait(120)
        assert torch.equal(out, filled(4, CHUNK))
        assert not stuck.done()
        layer.gates["write"].set()
        for read in behind:
            read.wait()


def test_closing_waits_for_running_transfers(tmp_path):
    layer = GateLayer()
    tier = NvmeTier(tmp_path, 4 * CHUNK, chunk_bytes=CHUNK, layer=layer)
    layer.gates["write"].clear()
    write = tier.put("a", filled(1))
    closing = threading.Thread(target=tier.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    layer.gates["write"].set()
    closing.join(120)
    assert write.done()
    write.wait()


def test_a_ticket_ends_only_when_no_piece_touches_the_buffer(tier, layer):
    """One chunk fails at once, another is still being read: the ticket waits."""
    tier.put("a", filled(1)).wait()
    with tier.path.open("r+b") as file:
        file.write(b"\x00")
    while layer.entered.acquire(blocking=False):
        pass
    layer.gates["read"].clear()
    read = tier.fetch("a", filled(0))
    for _ in range(2):
        assert layer.entered.acquire(timeout=120)
    with pytest.raises(TimeoutError):
        read.wait(0.05)
    layer.gates["read"].set()
    with pytest.raises(StorageFault):
        read.wait()


def _worker(tier, ring, name, seed, num_rounds):
    """Put and fetch own keys through shared slots; return how often bytes differed."""
    chooser = random.Random(seed)
    kept = {}
    wrong = 0
    for _ in range(num_rounds):
        key = f"{name}.{chooser.randrange(3)}"
        slot = ring.take(60)
        if key in kept and chooser.random() < 0.5:
            read = tier.fetch(key, slot.buffer)
            read.wait()
            wrong += not bool((slot.buffer == kept[key]).all())
            ring.give_back(slot)
        else:
            kept[key] = chooser.randrange(255)
            slot.buffer.fill_(kept[key])
            # The next owner overwrites the slot with poison as soon as it may.
            ring.give_back(slot, tier.put(key, slot.buffer))
    return wrong


@pytest.mark.parametrize("seed", range(3))
def test_stress_random_delays_never_show_a_reused_buffer(tmp_path, seed):
    results = []
    with NvmeTier(
        tmp_path,
        64 * CHUNK,
        chunk_bytes=CHUNK,
        num_threads=4,
        layer=SlowLayer(seed, 0.003),
    ) as tier:
        ring = SlotRing(3, 3 * CHUNK + 100, poison=True)
        workers = [
            threading.Thread(
                target=lambda number=number: results.append(
                    _worker(tier, ring, f"w{number}", 10 * seed + number, 40)
                )
            )
            for number in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert results == [0, 0, 0, 0]


def test_stress_the_same_load_with_early_reuse_is_found_out(tmp_path):
    """The planted fault: slots go back without their tickets, as a racing engine's."""

    class HastyRing(SlotRing):
        def give_back(self, slot, *tickets):
            super().give_back(slot)

    faults = 0
    with NvmeTier(
        tmp_path,
        64 * CHUNK,
        chunk_bytes=CHUNK,
        num_threads=1,
        layer=SlowLayer(0, 0.003),
    ) as tier:
        ring = HastyRing(2, 3 * CHUNK + 100, poison=True)
        try:
            faults = _worker(tier, ring, "w", 0, 60)
        except StorageFault:
            faults += 1
    assert faults > 0


def test_a_slot_whose_write_failed_raises_at_its_next_owner(tmp_path):
    with NvmeTier(tmp_path, 4 * CHUNK, chunk_bytes=CHUNK) as tier:
        tier.put("a", filled(1)).wait()
        with tier.path.open("r+b") as file:
            file.write(b"\x00")
        ring = SlotRing(1, 2 * CHUNK)
        slot = ring.take()
        ring.give_back(slot, tier.fetch("a", slot.buffer))
        with pytest.raises(StorageFault):
            ring.take()


def test_taking_more_slots_than_there_are_ends_in_an_error():
    ring = SlotRing(2, 10)
    first = ring.take(0.01)
    assert ring.take(0.01) is not first
    with pytest.raises(TimeoutError, match="no slot"):
        ring.take(0.01)
