"""Swap files that do not give back what was written stop the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lazytrain.baselines.swap_io import (
    PAGE_BYTES,
    CheckedHandle,
    Ledger,
    SwapMismatch,
    request_ends,
)
from lazytrain.baselines.zero_overrides import cut_at_pages, refuse_unknown
from lazytrain.errors import InvalidInput

BLOCK_BYTES = 2 * PAGE_BYTES
THREADS = 2


class LateFiles:
    """Files that are read and written as late as a caller may expect: at ``wait``."""

    new_cpu_locked_tensor = free_cpu_locked_tensor = None

    def __init__(self) -> None:
        self.queue = []
        self.refuses_reads = False

    def is_pinned(self, buffer):
        return True

    def async_pwrite(self, buffer, path, offset):
        self.queue.append((buffer, path, True))
        return 0

    def async_pread(self, buffer, path, offset):
        self.queue.append((buffer, path, False))
        return 0

    def wait(self):
        queue, self.queue = self.queue, []
        for buffer, path, is_write in queue:
            raw = buffer.view(torch.uint8).numpy()
            if is_write:
                Path(path).write_bytes(raw.tobytes())
            elif not self.refuses_reads:
                raw[:] = torch.frombuffer(
                    bytearray(Path(path).read_bytes()), dtype=torch.uint8
                )
        return len(queue)


def pages(count: int) -> torch.Tensor:
    """Return a buffer of zeros that starts at a page."""
    raw = torch.zeros((count + 1) * PAGE_BYTES, dtype=torch.uint8)
    start = -raw.data_ptr() % PAGE_BYTES
    return raw[start : start + count * PAGE_BYTES].view(torch.float32)


@pytest.fixture
def files():
    return LateFiles()


@pytest.fixture
def handle(files):
    return CheckedHandle(files, Ledger(), BLOCK_BYTES, THREADS)


@pytest.fixture
def written(handle, tmp_path):
    """The path of a written file of ten pages, and what it holds."""
    buffer, path = pages(10), str(tmp_path / "a")
    buffer.copy_(torch.arange(buffer.numel()))
    assert handle.async_pwrite(buffer, path, 0) == 0
    assert handle.wait() == 1
    return path, buffer


def read(handle, path, count=10):
    buffer = pages(count)
    assert handle.async_pread(buffer, path, 0) == 0
    assert handle.wait() == 1
    return buffer


def test_marks_lie_at_both_ends_of_each_threads_requests():
    # Two shares of five pages, each in blocks of two: 2, 2 and 1 page.
    words = PAGE_BYTES // 8
    starts = [page * words for page in (0, 2, 4, 5, 7, 9)]
    stops = [page * words - 1 for page in (2, 4, 5, 7, 9, 10)]
    ends = request_ends(10 * PAGE_BYTES, THREADS, BLOCK_BYTES).tolist()
    assert ends[::2] == starts
    assert ends[1::2] == stops


def test_what_was_written_is_read_by_another_handle_of_the_ledger(handle, written):
    path, buffer = written
    other = CheckedHandle(LateFiles(), handle._ledger, BLOCK_BYTES, THREADS)
    assert torch.equal(read(other, path), buffer)


def test_a_refused_read_is_found_even_where_the_buffer_held_the_same(
    handle, files, written
):
    path, buffer = written
    files.refuses_reads = True
    handle.async_pread(buffer, path, 0)
    with pytest.raises(SwapMismatch, match="12 of 12 marks"):
        handle.wait()


@pytest.mark.parametrize(
    ("page", "what"), [(1, "the sum of its words"), (5, "1 of 12 marks")]
)
def test_a_changed_file_is_found(handle, written, page, what):
    path, _ = written
    with Path(path).open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(b"changed!")
    with pytest.raises(SwapMismatch, match=what):
        read(handle, path)


def test_later_rounds_compare_marks_alone(handle, written):
    path, buffer = written
    for _ in range(4):
        handle.async_pwrite(buffer, path, 0)
        handle.wait()
    assert handle._ledger.files[path].total is None
    with Path(path).open("r+b") as file:
        file.seek(5 * PAGE_BYTES)
        file.write(b"changed!")
    with pytest.raises(SwapMismatch, match="1 of 12 marks"):
        read(handle, path)


def test_a_mismatch_leaves_no_handle_at_work(handle, files, written, tmp_path):
    path, buffer = written
    other_files = LateFiles()
    other = CheckedHandle(other_files, handle._ledger, BLOCK_BYTES, THREADS)
    other.async_pwrite(buffer, str(tmp_path / "b"), 0)
    files.refuses_reads = True
    with pytest.raises(SwapMismatch):
        read(handle, path)
    assert other_files.queue == []


def test_buffers_that_direct_io_refuses_on_some_disks_are_refused_here(
    handle, tmp_path
):
    buffer, path = pages(3), str(tmp_path / "a")
    with pytest.raises(SwapMismatch, match="no whole pages"):
        handle.async_pwrite(buffer[128 : 128 + PAGE_BYTES // 2], path, 0)
    with pytest.raises(SwapMismatch, match="no whole pages"):
        handle.async_pread(buffer[:128], path, 0)


def test_only_a_buffer_at_a_page_is_read_into_as_it_is(handle):
    buffer = pages(3)
    assert handle.is_pinned(buffer)
    assert handle.is_pinned(buffer[PAGE_BYTES // 4 :])
    assert not handle.is_pinned(buffer[128:])


def test_only_what_was_written_can_be_read(handle, written, tmp_path):
    path, _ = written
    with pytest.raises(SwapMismatch, match="nothing written"):
        read(handle, str(tmp_path / "b"))
    with pytest.raises(SwapMismatch, match="8192 bytes read, 40960 bytes written"):
        read(handle, path, 2)


@pytest.mark.parametrize("offset", [0, 1, 1024, 1500])
@pytest.mark.parametrize("length", [4095, 5500, 8192, 9000, 12345])
def test_gradients_are_swapped_in_whole_pages_and_none_is_lost(offset, length):
    swapper = SimpleNamespace(
        numel_alignment=2048, is_swappable_tensor=lambda numel: numel >= 4096
    )
    gradient = torch.arange(length, dtype=torch.float32)
    pieces, places = cut_at_pages(swapper, [gradient], [offset])
    sub_group = torch.full((offset + length,), -1.0)
    for piece, place in zip(pieces, places, strict=True):
        sub_group[place : place + piece.numel()] = piece
        if piece.numel() >= 4096:
            assert place * 4 % PAGE_BYTES == 0
            assert piece.numel() % 2048 == 0
        else:
            assert piece.untyped_storage().nbytes() == piece.nbytes
    assert torch.equal(sub_group[offset:], gradient)


def test_a_gradient_without_enough_whole_pages_stays_in_memory():
    swapper = SimpleNamespace(
        numel_alignment=2048, is_swappable_tensor=lambda numel: numel >= 4096
    )
    large, small = torch.arange(4501.0), torch.arange(10.0)
    pieces, places = cut_at_pages(swapper, [large, small], [100, 4601])
    assert places == [100, 2350, 4601]
    assert [piece.numel() for piece in pieces] == [2250, 2251, 10]
    assert torch.equal(torch.cat(pieces), torch.cat([large, small]))


@pytest.mark.parametrize("version", ["0.19.7", "0.19.80", "0.20.0"])
def test_an_unknown_deepspeed_is_refused(version):
    refuse_unknown("0.19.8")
    refuse_unknown("0.19.8+local")
    with pytest.raises(InvalidInput, match=f"DeepSpeed = '{version}'"):
        refuse_unknown(version)
