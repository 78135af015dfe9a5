"""Optimizer state on a tier: the same numbers as state in memory."""

from __future__ import annotations

import pytest
import torch
from faulty_layer import SlowLayer

from lazytrain.errors import InvalidInput
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.state_stream import StateStream
from lazytrain.tiers.tier import StorageFault


def parts(num_parts=5):
    generator = torch.Generator().manual_seed(0)
    return {
        f"layer{index}": {
            "exp_avg": torch.randn(1000 + 13 * index, generator=generator),
            "codes": torch.arange(77 + index, dtype=torch.uint8),
            "remainder": torch.arange(50, dtype=torch.int16).view(5, 10),
            "empty": torch.empty(0),
        }
        for index in range(num_parts)
    }


def update(tensors, step):
    tensors["exp_avg"].mul_(0.9).add_(step)
    tensors["codes"].add_(3)
    tensors["remainder"].bitwise_xor_(step)


@pytest.mark.parametrize("num_slots", [2, 3, 5])
@pytest.mark.parametrize("most_s", [0.0, 0.004])
def test_streamed_updates_equal_updates_in_memory(tmp_path, num_slots, most_s):
    expected = parts()
    layer = SlowLayer(num_slots, most_s)
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=4096, layer=layer) as tier:
        stream = StateStream(tier, num_slots=num_slots)
        for name, tensors in parts().items():
            stream.store(name, tensors)
        for step, order in enumerate([list(expected), list(reversed(expected))] * 2):
            for name, tensors in stream.walk(order):
                update(tensors, step)
                update(expected[name], step)
        for name, tensors in expected.items():
            for key, value in stream.load(name).items():
                assert torch.equal(value, tensors[key]), (name, key)
        largest = max(stream._sizes.values())
        assert stream.host_bytes <= num_slots * (largest + 4096)


def test_a_walk_that_is_left_early_keeps_the_old_state_of_its_part(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = StateStream(tier)
        for name, tensors in parts(3).items():
            stream.store(name, tensors)

        def fail():
            for name, tensors in stream.walk(["layer0", "layer1", "layer2"]):
                update(tensors, 1)
                if name == "layer1":
                    raise ArithmeticError("not finite")

        for _ in range(4):  # slots come back each time
            with pytest.raises(ArithmeticError):
                fail()
        for name in ("layer1", "layer2"):
            before = parts(3)[name]["exp_avg"]
            assert torch.equal(stream.load(name)["exp_avg"], before)


def test_corrupted_state_stops_the_walk_with_the_parts_name(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = StateStream(tier)
        for name, tensors in parts(2).items():
            stream.store(name, tensors)
        with tier.path.open("r+b") as file:
            file.write(b"\x01\x02\x03")
        with pytest.raises(StorageFault, match=r"optimizer\.layer0"):
            list(stream.walk(["layer0", "layer1"]))


def test_a_larger_part_may_come_later(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = StateStream(tier)
        stream.store("small", {"m": torch.zeros(10)})
        assert [name for name, _ in stream.walk(["small"])] == ["small"]
        stream.store("large", {"m": torch.ones(10_000)})
        for name, tensors in stream.walk(["large", "small"]):
            assert bool((tensors["m"] == (name == "large")).all())


def test_wrong_orders_are_refused(tmp_path):
    with NvmeTier(tmp_path, 1 << 20) as tier:
        stream = StateStream(tier)
        stream.store("a", {"m": torch.zeros(10)})
        with pytest.raises(InvalidInput, match="once per walk"):
            list(stream.walk(["a", "a"]))
        with pytest.raises(InvalidInput, match="first state"):
            list(stream.walk(["a", "b"]))
        with pytest.raises(InvalidInput, match="2 or more"):
            StateStream(tier, num_slots=1)
