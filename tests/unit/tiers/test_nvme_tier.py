"""What the tier promises on a healthy disk."""

from __future__ import annotations

import errno
import logging
import stat

import pytest
import torch
from faulty_layer import ErrorLayer, UnalignedMemoryLayer

from lazytrain.errors import InvalidInput
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.slots import aligned_bytes
from lazytrain.tiers.tier import StorageFault, TierFull

CHUNK = 8192
SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 50_001]


@pytest.fixture
def tier(tmp_path):
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=CHUNK) as opened:
        yield opened


def random_bytes(num_bytes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [0, 1, 512])
def test_bytes_come_back_whatever_size_and_alignment(tier, size, shift):
    # aligned_bytes starts on a page; a shifted view is what O_DIRECT refuses
    data = aligned_bytes(size + shift)[shift:]
    data.copy_(random_bytes(size))
    out = torch.full((size + shift,), 7, dtype=torch.uint8)[shift:]
    tier.put("boundary.0", data).wait()
    tier.fetch("boundary.0", out).wait()
    assert torch.equal(out, data)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.float16]
)
def test_every_dtype_and_shape_comes_back(tier, dtype):
    data = (torch.randn(3, 5, 77) * 9).to(dtype)
    out = torch.empty_like(data)
    tier.put("boundary.1", data)
    tier.fetch("boundary.1", out).wait()
    assert torch.equal(out, data)


def test_nothing_of_an_older_value_is_left_behind_a_shorter_one(tier):
    for _ in range(8):  # more than there are bounce buffers
        tier.put("boundary.2", torch.full((8192,), 9, dtype=torch.uint8)).wait()
    tier.release("boundary.2")
    tier.put("boundary.3", torch.full((5001,), 3, dtype=torch.uint8)).wait()
    if tier.describe()["direct"]:
        assert tier.path.read_bytes()[5001:8192] == bytes(3191)


def test_scalars_and_tensors_with_gradients_are_taken(tier):
    scalar, out = torch.tensor(2.5, requires_grad=True), torch.empty(())
    tier.put("boundary.2", scalar)
    tier.fetch("boundary.2", out).wait()
    assert out.item() == 2.5


def test_a_new_value_of_the_same_size_takes_the_same_place(tier):
    for generation in range(5):
        data = random_bytes(20_000, generation)
        tier.put("boundary.3", data).wait()
        assert tier.used_bytes == 20_480
        out = torch.empty_like(data)
        tier.fetch("boundary.3", out).wait()
        assert torch.equal(out, data)


def test_a_new_value_of_another_size_frees_the_old_place(tier):
    for size in (4096, 40_960, 8192):
        tier.put("boundary.4", random_bytes(size)).wait()
        assert tier.used_bytes == size
    tier.release("boundary.4")
    assert tier.used_bytes == 0


def test_a_released_key_is_gone(tier):
    tier.put("boundary.5", random_bytes(10)).wait()
    tier.release("boundary.5")
    with pytest.raises(InvalidInput, match=r"boundary\.5.*released"):
        tier.fetch("boundary.5", torch.empty(10, dtype=torch.uint8))
    with pytest.raises(InvalidInput, match="released"):
        tier.release("boundary.5")


def test_a_full_tier_says_what_it_holds_and_keeps_the_old_value(tier):
    data = random_bytes(500_000)
    tier.put("boundary.6", data).wait()
    with pytest.raises(TierFull, match=r"boundary\.7.*free"):
        tier.put("boundary.7", random_bytes(600_000))
    with pytest.raises(TierFull, match=r"boundary\.6"):
        tier.put("boundary.6", random_bytes(600_000))
    out = torch.empty_like(data)
    tier.fetch("boundary.6", out).wait()
    assert torch.equal(out, data)


def test_whole_capacity_can_be_used_again_and_again(tier):
    for _ in range(3):
        for key in "abcd":
            tier.put(key, random_bytes(tier.capacity_bytes // 4))
        assert tier.used_bytes == tier.capacity_bytes
        for key in "cabd":
            tier.release(key)
    assert tier.used_bytes == 0


def test_a_wrong_size_names_both(tier):
    tier.put("boundary.8", random_bytes(100)).wait()
    with pytest.raises(InvalidInput, match=r"'99 B'.*boundary\.8 holds 100 B"):
        tier.fetch("boundary.8", torch.empty(99, dtype=torch.uint8))


def test_what_cannot_be_taken_is_refused_at_once(tier):
    with pytest.raises(InvalidInput, match="contiguous"):
        tier.put("boundary.9", torch.empty(4, 4).T)
    with pytest.raises(InvalidInput, match="host memory only"):
        tier.put("boundary.9", torch.empty(4, device="meta"))
    with pytest.raises(InvalidInput, match="multiple of 4096"):
        NvmeTier(tier.path.parent, 4096, chunk_bytes=5000)


def test_files_are_private_preallocated_and_gone_afterwards(tmp_path):
    with NvmeTier(tmp_path / "scratch", 1_000_000) as tier:
        status = tier.path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_blocks * 512 >= 1_000_000
        assert stat.S_IMODE(tier.path.parent.stat().st_mode) == 0o700
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_closed_tier_takes_nothing_and_closes_again(tmp_path):
    tier = NvmeTier(tmp_path, 4096)
    tier.close()
    tier.close()
    with pytest.raises(InvalidInput, match="closed"):
        tier.put("boundary.0", torch.zeros(1))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("verb", ["open-direct", "read"])
def test_a_file_system_without_o_direct_is_used_and_recorded(tmp_path, verb, number):
    layer = ErrorLayer(number, verb)
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=CHUNK, layer=layer) as tier:
        layer.is_armed = False
        assert tier.describe()["direct"] is False
        assert "O_DIRECT refused" in str(tier.describe()["note"])
        data = random_bytes(33_333)
        out = torch.empty_like(data)
        tier.put("boundary.0", data)
        tier.fetch("boundary.0", out).wait()
        assert torch.equal(out, data)


def test_memory_that_the_kernel_cannot_pin_goes_through_bounce_buffers(tmp_path):
    data = aligned_bytes(8 * CHUNK)
    data.copy_(random_bytes(8 * CHUNK))
    low = data.data_ptr()

    def is_foreign(view):
        start = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
        return low <= start < low + data.numel()

    layer = UnalignedMemoryLayer(is_foreign)
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=CHUNK, layer=layer) as tier:
        if not tier.describe()["direct"]:
            pytest.skip("this file system refuses O_DIRECT: nothing to bounce")
        out = torch.empty_like(data)
        tier.put("boundary.0", data).wait()
        tier.fetch("boundary.0", out).wait()
        assert torch.equal(out, data)
        assert "bounce" in str(tier.describe()["note"])
    assert layer.num_refused >= 1


def test_the_record_says_backend_and_whether_bytes_are_verified(tmp_path, caplog):
    with (
        caplog.at_level(logging.INFO, "lazytrain.tiers"),
        NvmeTier(tmp_path, 4096) as proven,
        NvmeTier(tmp_path, 4096, verify=False) as unproven,
    ):
        assert proven.backend == "posix"
        assert proven.describe()["verify"] is True
        assert proven.describe()["checksum"] in {"xxh3-64", "crc32"}
        assert unproven.describe()["verify"] is False
        assert unproven.describe()["checksum"] == "off"
    assert "'backend': 'posix'" in caplog.text
    assert "posix, because" in caplog.text


def test_a_backend_that_is_missing_is_an_error_not_another_backend(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("may have GPUDirect Storage")
    with pytest.raises(InvalidInput, match=r"backend = 'gds'.*(kvikio|libcuda|nvidia)"):
        NvmeTier(tmp_path, 4096, backend="gds")
    assert list(tmp_path.iterdir()) == []


def test_a_wait_with_a_limit_gives_up_and_a_fault_names_everything(tier):
    tier.put("boundary.0", random_bytes(5000)).wait(120)
    with tier.path.open("r+b") as file:
        file.write(b"\x00" * 5000)
    with pytest.raises(StorageFault) as caught:
        tier.fetch("boundary.0", torch.empty(5000, dtype=torch.uint8)).wait()
    fault = caught.value
    assert fault.path == tier.path
    assert "boundary.0 (generation 1)" in fault.key
    assert str(fault.expected) in str(fault)
    assert str(fault.found) in str(fault)
