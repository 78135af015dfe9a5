"""Every fault of a disk ends in the right bytes or in a clear error."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys

import pytest
import torch
from faulty_layer import ErrorLayer, LyingLayer, ShortLayer, SlowLayer, StuckLayer

from lazytrain.errors import InvalidInput
from lazytrain.tiers.extents import ALIGN_BYTES
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import StorageFault, TierFull

CHUNK = 8192
SIZE = 3 * CHUNK + 777


def random_bytes(num_bytes=SIZE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def opened(root, **options):
    return NvmeTier(root, 1 << 20, chunk_bytes=CHUNK, **options)


def is_poisoned(out):
    return bool((out == 0xFF).all())


@contextlib.contextmanager
def mounted(folder, options):
    """Mount a tmpfs; the test is skipped where this user may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_before_the_first_step(tmp_path):
    with mounted(tmp_path / "small", "size=1m") as root:
        with pytest.raises(TierFull, match=r"B free .*free some space"):
            NvmeTier(root, 8 << 20)
        assert list(root.iterdir()) == []
        # what fits is taken, and a second run sees what the first has reserved
        with NvmeTier(root, 700_000), pytest.raises(TierFull):
            NvmeTier(root, 700_000)


def test_a_read_only_disk_is_an_error_before_the_first_step(tmp_path):
    with (
        mounted(tmp_path / "fixed", "ro,size=1m") as root,
        pytest.raises(InvalidInput, match="Read-only file system"),
    ):
        NvmeTier(root, 4096)


def test_a_limit_on_file_size_is_an_error_before_the_first_step(tmp_path):
    program = """
import resource, sys
from pathlib import Path
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import TierFull
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
NvmeTier(Path(sys.argv[1]), 1 << 20).close()
try:
    NvmeTier(Path(sys.argv[1]), 8 << 20)
except TierFull as error:
    sys.stdout.write(str(error))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "8,388,608 B asked" in ended.stdout
    assert os.strerror(errno.EFBIG) in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_space_refused_at_the_start_leaves_nothing_behind(tmp_path, number):
    with pytest.raises(TierFull, match="1,048,576 B asked"):
        opened(tmp_path, layer=ErrorLayer(number, "reserve"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("verb", ["open", "reserve"])
def test_a_start_that_fails_leaves_nothing_behind(tmp_path, number, verb):
    with pytest.raises(InvalidInput, match=os.strerror(number)):
        opened(tmp_path, layer=ErrorLayer(number, verb))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_write_that_fails_later_never_gives_older_bytes(tmp_path, number):
    layer = ErrorLayer(number, "write", is_armed=False)
    with opened(tmp_path, layer=layer) as tier:
        first, out = random_bytes(), torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.4", first).wait()
        layer.is_armed = True
        write = tier.put("boundary.4", random_bytes(seed=1))
        read = tier.fetch("boundary.4", out)
        for ticket in (write, read, tier.fetch("boundary.4", out)):
            with pytest.raises(StorageFault, match=r"boundary\.4.*errno") as caught:
                ticket.wait()
            assert os.strerror(number) in str(caught.value)
            assert str(tier.path) in str(caught.value)
        assert is_poisoned(out)
        # a disk that works again is used again
        layer.is_armed = False
        tier.put("boundary.4", first)
        tier.fetch("boundary.4", out).wait()
        assert torch.equal(out, first)


def test_a_read_that_fails_stops_the_step_and_can_be_repeated(tmp_path):
    layer = ErrorLayer(errno.EIO, "read", is_armed=False)
    with opened(tmp_path, layer=layer) as tier:
        data, out = random_bytes(), torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.5", data).wait()
        layer.is_armed = True
        with pytest.raises(StorageFault, match="Input/output error"):
            tier.fetch("boundary.5", out).wait()
        assert is_poisoned(out)
        layer.is_armed = False
        tier.fetch("boundary.5", out).wait()
        assert torch.equal(out, data)


@pytest.mark.parametrize("seed", range(6))
def test_short_reads_and_writes_are_continued(tmp_path, seed):
    layer = ShortLayer(seed, ALIGN_BYTES)
    with NvmeTier(tmp_path, 1 << 20, chunk_bytes=16 * 4096, layer=layer) as tier:
        data = random_bytes(300_001, seed)
        out = torch.empty_like(data)
        tier.put("boundary.6", data)
        tier.fetch("boundary.6", out).wait()
        assert torch.equal(out, data)
    assert layer.num_short > 0


@pytest.mark.parametrize("seed", range(6))
def test_short_transfers_inside_a_block_are_continued_or_reported(tmp_path, seed):
    layer = ShortLayer(seed, 1)
    with opened(tmp_path, layer=layer) as tier:
        data, out = random_bytes(seed=seed), torch.zeros(SIZE, dtype=torch.uint8)
        try:
            tier.put("boundary.6", data).wait()
            tier.fetch("boundary.6", out).wait()
        except StorageFault as fault:
            assert " B " in str(fault.expected)  # noqa: PT017 - either end is right
        else:
            assert torch.equal(out, data)
    assert layer.num_short > 0


@pytest.mark.parametrize(("verb", "done"), [("write", "written"), ("read", "read")])
def test_a_transfer_without_progress_is_reported_with_both_lengths(
    tmp_path, verb, done
):
    with opened(tmp_path, layer=StuckLayer(verb)) as tier:
        put = tier.put("boundary.7", random_bytes(100))
        read = tier.fetch("boundary.7", torch.zeros(100, dtype=torch.uint8))
        ticket = put if verb == "write" else read
        with pytest.raises(StorageFault, match=rf"expected \d+ B {done}, found 0 B"):
            ticket.wait()


@pytest.mark.parametrize("left", [0, 1, 4096, CHUNK, SIZE - 1])
def test_a_truncated_file_is_detected(tmp_path, left):
    with opened(tmp_path) as tier:
        out = torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.8", random_bytes()).wait()
        os.truncate(tier.path, left)
        with pytest.raises(StorageFault, match=r"boundary\.8.*B read, found \d+ B"):
            tier.fetch("boundary.8", out).wait()
        assert is_poisoned(out)


def test_a_file_truncated_and_grown_again_is_detected(tmp_path):
    with opened(tmp_path) as tier:
        tier.put("boundary.8", random_bytes()).wait()
        os.truncate(tier.path, 0)
        os.truncate(tier.path, tier.capacity_bytes)
        with pytest.raises(StorageFault, match="checksum"):
            tier.fetch("boundary.8", torch.zeros(SIZE, dtype=torch.uint8)).wait()


@pytest.mark.parametrize("position", [0, 1, 4095, CHUNK, 2 * CHUNK + 5, SIZE - 1])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_is_detected_and_its_chunk_named(tmp_path, position, bit):
    with opened(tmp_path) as tier:
        out = torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.9", random_bytes()).wait()
        with tier.path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ (1 << bit)]))
        start = position // CHUNK * CHUNK
        with pytest.raises(StorageFault, match=rf"boundary\.9.*bytes {start} to"):
            tier.fetch("boundary.9", out).wait()
        assert is_poisoned(out)


def test_without_verification_a_flipped_bit_passes(tmp_path):
    """The guard is what finds it: off, and recorded as off, nobody does."""
    with opened(tmp_path, verify=False) as tier:
        data, out = random_bytes(), torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.9", data).wait()
        with tier.path.open("r+b") as file:
            file.write(bytes([int(data[0]) ^ 1]))
        tier.fetch("boundary.9", out).wait()
        assert out[0] == data[0] ^ 1
        assert tier.describe()["checksum"] == "off"


@pytest.mark.parametrize("shift", [None, 65_536])
def test_a_lost_or_misplaced_write_never_gives_the_older_bytes(tmp_path, shift):
    layer = LyingLayer(shift)
    with opened(tmp_path, layer=layer) as tier:
        out = torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.10", random_bytes()).wait()
        tier.fetch("boundary.10", out).wait()
        layer.is_armed = True
        tier.put("boundary.10", random_bytes(seed=1)).wait()
        with pytest.raises(StorageFault, match=r"generation 2.*checksum"):
            tier.fetch("boundary.10", out).wait()
        assert is_poisoned(out)


def test_a_deleted_directory_takes_no_bytes_from_a_running_step(tmp_path):
    with opened(tmp_path) as tier:
        data, out = random_bytes(), torch.zeros(SIZE, dtype=torch.uint8)
        tier.put("boundary.11", data).wait()
        shutil.rmtree(tier.path.parent)
        tier.fetch("boundary.11", out).wait()
        assert torch.equal(out, data)
        tier.put("boundary.12", data)
        tier.fetch("boundary.12", out.zero_()).wait()
        assert torch.equal(out, data)


def test_a_deleted_root_is_an_error_or_made_again_at_the_start(tmp_path):
    root = tmp_path / "gone"
    with opened(root):
        assert root.is_dir()
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InvalidInput, match="scratch"):
        opened(tmp_path / "file")


def _slow_round_trip(root, least_s):
    layer = SlowLayer(0, least_s * 1.2, least_s)
    with opened(root, layer=layer) as tier:
        data, out = random_bytes(CHUNK), torch.zeros(CHUNK, dtype=torch.uint8)
        write = tier.put("boundary.13", data)
        read = tier.fetch("boundary.13", out)
        assert not write.done()
        assert not read.done()
        read.wait()
        assert torch.equal(out, data)


def test_a_slow_disk_is_waited_for(tmp_path):
    _slow_round_trip(tmp_path, 0.05)


@pytest.mark.slow
def test_a_very_slow_disk_is_waited_for(tmp_path):
    _slow_round_trip(tmp_path, 2.0)


def test_two_runs_on_one_root_have_a_directory_each(tmp_path):
    with opened(tmp_path) as one, opened(tmp_path) as two:
        assert one.path.parent != two.path.parent
        mine, theirs = random_bytes(seed=1), random_bytes(seed=2)
        one.put("boundary.0", mine).wait()
        two.put("boundary.0", theirs).wait()
        out = torch.empty_like(mine)
        one.fetch("boundary.0", out).wait()
        assert torch.equal(out, mine)
        two.fetch("boundary.0", out).wait()
        assert torch.equal(out, theirs)
    assert list(tmp_path.iterdir()) == []
