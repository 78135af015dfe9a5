"""Optimizer state on a tier: the same numbers as state in memory."""

from __future__ import annotations

import errno
import time

import pytest
import torch
from faulty_layer import ErrorLayer, SlowLayer

from lazytrain.errors import InvalidInput
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.state_stream import READ_AHEAD, StateStream
from lazytrain.tiers.tier import StorageFault


def units(num_units=5):
    generator = torch.Generator().manual_seed(0)
    return {
        f"layer{index}": {
            "exp_avg": torch.randn(1000 + 13 * index, generator=generator),
            "codes": torch.arange(77 + index, dtype=torch.uint8),
            "remainder": torch.arange(50, dtype=torch.int16).view(5, 10),
            "empty": torch.empty(0),
        }
        for index in range(num_units)
    }


def stream_of(tier, content, **options):
    """Return a stream with the given content stored."""
    stream = StateStream(tier, poison=True, **options)
    for unit, tensors in content.items():
        stream.declare(unit, tensors)
    for unit, tensors in content.items():
        for name, tensor in tensors.items():
            stream.store(unit, name, tensor)
    return stream


def update(tensors, step):
    tensors["exp_avg"].mul_(0.9).add_(step)
    tensors["codes"].add_(3)
    tensors["remainder"].bitwise_xor_(step)


@pytest.mark.parametrize("num_slots", [2, 3, 4, 7])
@pytest.mark.parametrize("most_s", [0.0, 0.004])
@pytest.mark.parametrize("num_units", [1, 2, 5])
def test_streamed_updates_equal_updates_in_memory(
    tmp_path, num_slots, most_s, num_units
):
    expected = units(num_units)
    layer = SlowLayer(num_slots, most_s)
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=4096, layer=layer) as tier:
        stream = stream_of(tier, units(num_units), num_slots=num_slots)
        for step in range(5):
            order = list(expected)
            if step == 3:  # out of turn: what was read ahead is forgotten
                order.reverse()
            for unit in order:
                with stream.using(unit) as tensors:
                    update(tensors, step)
                update(expected[unit], step)
        stream.settle()
        for unit, tensors in expected.items():
            for name, value in tensors.items():
                assert torch.equal(stream.load(unit, name), value), (unit, name)
        assert tier.used_bytes == stream.tier_bytes
        largest = stream._page_bytes
        assert stream.host_bytes == num_slots * largest


def test_state_is_zero_before_its_first_use_and_nothing_is_written(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = StateStream(tier, poison=True)
        for unit, tensors in units(3).items():
            stream.declare(unit, tensors)
        assert tier.used_bytes == 0
        assert not stream.load("layer1", "exp_avg").any()
        with stream.using("layer0") as tensors:
            assert not any(tensor.any() for tensor in tensors.values())
            tensors["exp_avg"].fill_(2)
        stream.settle()
        assert bool((stream.load("layer0", "exp_avg") == 2).all())
        assert not stream.load("layer1", "exp_avg").any()


def ahead_of(stream):
    """Return which units are being read ahead, once pages are free for them."""
    for _ in range(1000):
        stream.read_ahead()
        if len(stream._ahead) == READ_AHEAD:
            break
        time.sleep(0.01)
    return [reading.unit for reading in stream._ahead]


def test_the_next_units_are_read_before_they_are_asked_for(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = stream_of(tier, units(4))
        for number in range(4):
            with stream.using(f"layer{number}"):
                after = [f"layer{(number + k) % 4}" for k in (1, 2)]
                assert ahead_of(stream) == after
        # The step after begins with what was read at the end of this one.
        assert ahead_of(stream) == ["layer0", "layer1"]
        stream.settle()
        assert not stream._ahead


def test_a_body_that_raises_keeps_the_old_state_of_its_unit(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = stream_of(tier, units(3))

        def fail():
            for unit in ("layer0", "layer1"):
                with stream.using(unit) as tensors:
                    update(tensors, 1)
                    if unit == "layer1":
                        raise ArithmeticError("not finite")

        for _ in range(6):  # pages come back each time
            with pytest.raises(ArithmeticError):
                fail()
        stream.settle()
        for unit in ("layer1", "layer2"):
            before = units(3)[unit]["exp_avg"]
            assert torch.equal(stream.load(unit, "exp_avg"), before)


def test_corrupted_state_stops_with_the_units_name(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = stream_of(tier, units(2))
        with tier.path.open("r+b") as file:
            file.write(b"\x01\x02\x03")
        with (
            pytest.raises(StorageFault, match=r"optimizer\.layer0"),
            stream.using("layer0"),
        ):
            pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_behind_is_raised_and_nothing_hangs(tmp_path, number):
    layer = ErrorLayer(number, "write", is_armed=False)
    with NvmeTier(tmp_path, 1 << 20, layer=layer) as tier:
        stream = stream_of(tier, units(3))
        layer.is_armed = True

        def run():
            for unit in list(units(3)) * 3:
                with stream.using(unit) as tensors:
                    update(tensors, 1)

        with pytest.raises(StorageFault, match=r"optimizer\.layer\d"):
            run()
        with pytest.raises(StorageFault, match=r"optimizer\.layer\d"):
            stream.settle()


def test_wrong_uses_are_refused(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = stream_of(tier, units(2))
        with pytest.raises(InvalidInput, match="declare"), stream.using("other"):
            pass
        with pytest.raises(InvalidInput, match="declare"):
            stream.load("layer0", "other")
        with pytest.raises(InvalidInput, match="once"):
            stream.declare("layer0", {})
        with stream.using("layer0"):
            pass
        with pytest.raises(InvalidInput, match="before any use"):
            stream.declare("late", {})
        with pytest.raises(InvalidInput, match="2 or more"):
            StateStream(tier, num_slots=1)
