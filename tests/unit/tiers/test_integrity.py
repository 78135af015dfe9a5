"""The checksums: equal for equal bytes, different for every small change."""

from __future__ import annotations

import sys

import pytest
import torch

from lazytrain.tiers import integrity
from lazytrain.tiers.integrity import choose_checksum, device_checksum

FUNCTIONS = {
    "chosen": choose_checksum()[1],
    "crc32": integrity._crc32,
    "device": device_checksum,
}


def random_bytes(num_bytes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096, 4099])
def test_every_single_bit_counts(name, size):
    checksum, data = FUNCTIONS[name], random_bytes(size)
    assert checksum(data) == checksum(data.clone())
    for position in {0, size // 2, size - 1}:
        for bit in range(8):
            changed = data.clone()
            changed[position] ^= 1 << bit
            assert checksum(changed) != checksum(data)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_that_changed_places_are_seen(name):
    data = random_bytes(3 * 4096)
    swapped = torch.cat([data[4096:8192], data[:4096], data[8192:]])
    assert FUNCTIONS[name](swapped) != FUNCTIONS[name](data)


def test_crc32_stands_in_where_xxhash_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    name, checksum = choose_checksum()
    assert name == "crc32"
    # the value published for this text with this polynomial
    text = torch.frombuffer(bytearray(b"123456789"), dtype=torch.uint8)
    assert checksum(text) == 0xCBF43926


def test_the_device_sum_is_the_written_out_sum():
    data = random_bytes(24)
    words = [int.from_bytes(bytes(data[i : i + 8]), "little") for i in (0, 8, 16)]
    total = sum(word * weight for word, weight in zip(words, (1, 3, 5), strict=True))
    assert device_checksum(data) % 2**64 == total % 2**64
