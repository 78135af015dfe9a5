"""The NVMe tier against a plain O_DIRECT test: same disk, bytes, piece size and depth.

Claim: at least 90 % of the plain rate, writing and reading, while the GPU computes.
Both move the same bytes in pieces of the same size, with the same number of calls in
flight, in rounds that begin with the one and the other in turn; the GPU computes all
the while. Prints one JSON line, and writes it to ``$OUT/nvme.json`` if OUT is set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lazytrain.doctor.disk import file_system_of
from lazytrain.provenance import collect
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.slots import aligned_bytes
from lazytrain.units import GIB, MIB

PIECE_BYTES = 4 * MIB
TENSOR_BYTES = 64 * MIB
NUM_BUFFERS = 4  # tensors in flight, as an executor with prefetch distance 2 has
MOST_S = 35.0


@dataclass
class Rates:
    """Bytes per second of each round."""

    write: list[float]
    read: list[float]


def plain_round(path: Path, num_bytes: int, depth: int, rates: Rates) -> None:
    """Write, then read a preallocated file with plain threads and aligned buffers."""
    handle = os.open(path, os.O_RDWR | os.O_DIRECT)
    buffers = [mmap.mmap(-1, PIECE_BYTES) for _ in range(depth)]
    for buffer in buffers:
        buffer.write(os.urandom(PIECE_BYTES))

    def move(thread: int, call: Callable[[int, list[mmap.mmap], int], int]) -> None:
        for piece in range(thread, num_bytes // PIECE_BYTES, depth):
            done = call(handle, [buffers[thread]], piece * PIECE_BYTES)
            if done != PIECE_BYTES:
                raise OSError(f"plain test: {done} of {PIECE_BYTES} bytes moved")

    def run(call: Callable[[int, list[mmap.mmap], int], int]) -> float:
        with ThreadPoolExecutor(depth) as pool:
            start = time.perf_counter()
            # The list brings a thread's error here; a lost one would look fast.
            list(pool.map(lambda thread: move(thread, call), range(depth)))
            return num_bytes / (time.perf_counter() - start)

    try:
        rates.write.append(run(os.pwritev))
        rates.read.append(run(os.preadv))
    finally:
        os.close(handle)


def tier_round(
    tier: NvmeTier, buffers: list[Tensor], num_tensors: int, rates: Rates
) -> None:
    """Put, then fetch the same bytes through the tier, a few tensors in flight."""
    for call, into in ((tier.put, rates.write), (tier.fetch, rates.read)):
        tickets = []
        start = time.perf_counter()
        for index in range(num_tensors):
            if index >= len(buffers):
                tickets[index - len(buffers)].wait()
            key = f"boundary.{index}"
            tickets.append(call(key, buffers[index % len(buffers)]))
        for ticket in tickets:
            ticket.wait()
        into.append(num_tensors * TENSOR_BYTES / (time.perf_counter() - start))


def mixed_round(tier: NvmeTier, buffers: list[Tensor], num_tensors: int) -> float:
    """Return bytes per second of writing one half while reading the other."""
    half = num_tensors // 2
    pairs = [(tier.put, 0), (tier.fetch, half)]
    tickets = []
    start = time.perf_counter()
    for index in range(half):
        for number, (call, first) in enumerate(pairs):
            # Half of the buffers for each way.
            mine = buffers[number::2]
            if index >= len(mine):
                tickets[2 * (index - len(mine)) + number].wait()
            key = f"boundary.{first + index}"
            tickets.append(call(key, mine[index % len(mine)]))
    for ticket in tickets:
        ticket.wait()
    return 2 * half * TENSOR_BYTES / (time.perf_counter() - start)


@contextlib.contextmanager
def computing() -> Iterator[dict[str, float]]:
    """Keep the GPU busy with matrix products meanwhile; nothing without one."""
    told: dict[str, float] = {}
    if not torch.cuda.is_available():
        yield told
        return
    stop = threading.Event()
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def loop() -> None:
        stream, count = torch.cuda.Stream(), 0
        start = time.perf_counter()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                for _ in range(10):
                    left @ left
                count += 10
                stream.synchronize()
        told["tflops"] = count * 2 * 8192**3 / (time.perf_counter() - start) / 1e12

    worker = threading.Thread(target=loop)
    worker.start()
    try:
        yield told
    finally:
        stop.set()
        worker.join()


def host_buffers() -> list[Tensor]:
    """Return tensors with random bytes, pinned beside a GPU."""
    buffers = []
    for _ in range(NUM_BUFFERS):
        buffer = aligned_bytes(TENSOR_BYTES)
        if torch.cuda.is_available():
            buffer = torch.empty(TENSOR_BYTES, dtype=torch.uint8, pin_memory=True)
        buffers.append(buffer.random_())
    return buffers


def measure(root: Path, num_bytes: int, depth: int, rounds: int, backend: str) -> dict:
    """Run both tests in turn and return the medians and their ratios."""
    plain, ours = Rates([], []), Rates([], [])
    num_tensors = num_bytes // TENSOR_BYTES
    begun = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        NvmeTier(
            root,
            num_bytes,
            backend=backend,
            num_threads=depth,
            chunk_bytes=PIECE_BYTES,
        ) as tier,
        computing() as gpu,
    ):
        path = Path(folder) / "plain"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        buffers = host_buffers()
        # The first pass turns preallocated blocks into written ones: not counted.
        plain_round(path, num_bytes, depth, Rates([], []))
        tier_round(tier, buffers, num_tensors, Rates([], []))
        tests = [
            lambda: plain_round(path, num_bytes, depth, plain),
            lambda: tier_round(tier, buffers, num_tensors, ours),
        ]
        for _ in range(rounds):
            for test in tests:
                test()
            tests.reverse()
            if time.perf_counter() - begun > MOST_S:
                break
        mixed = mixed_round(tier, buffers, num_tensors)
        record = tier.describe()
    result = {"name": "nvme", "bytes": num_bytes, "depth": depth, "tier": record}
    result |= {"piece_bytes": PIECE_BYTES, "file_system": file_system_of(root)}
    result |= {"rounds": len(ours.write), "seconds": time.perf_counter() - begun}
    for verb in ("write", "read"):
        result[f"{verb}_rounds"] = getattr(ours, verb)
        result[f"plain_{verb}_rounds"] = getattr(plain, verb)
        rate = statistics.median(getattr(ours, verb))
        limit = statistics.median(getattr(plain, verb))
        result[f"{verb}_bytes_per_s"] = rate
        result[f"plain_{verb}_bytes_per_s"] = limit
        result[f"{verb}_ratio"] = rate / limit
    result["read_and_write_bytes_per_s"] = mixed
    result["gpu_meanwhile"] = gpu or "none"
    return result


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--gib", type=float, default=2.0, help="bytes per round")
    parser.add_argument("--depth", type=int, default=8, help="pieces in flight")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--backend", default="posix")
    options = parser.parse_args()
    num_bytes = int(options.gib * GIB) // TENSOR_BYTES * TENSOR_BYTES
    options.scratch.mkdir(parents=True, exist_ok=True)
    result = measure(
        options.scratch, num_bytes, options.depth, options.rounds, options.backend
    )
    result["provenance"] = collect().model_dump(mode="json")
    line = json.dumps(result)
    print(line)
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "nvme.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
