"""Allocating everything a plan needs, once: host arena, device buffers, homes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lazytrain.errors import InvalidInput, OutOfMemory
from lazytrain.executor.arena import HostArena
from lazytrain.executor.boundaries import WaveShape
from lazytrain.executor.layout import Layout
from lazytrain.executor.spill import BounceBuffers, HostHome, NvmeHome, Store
from lazytrain.executor.step import wave_rows
from lazytrain.executor.streams import Streams
from lazytrain.models.decoder import EMBEDDING, HEAD, Decoder
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.staging import BOUNCE_BUFFERS, CONSUMED_BUFFERS
from lazytrain.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class Sizes:
    """Flat sizes that follow from plan and model.

    Attributes:
        layouts: Layout per part, in forward order.
        wave: Largest wave of the plan.
        resident: Parts with a device buffer of their own.
        waiting: Parts whose gradient stays on the device until its update.
        dtype: Dtype of weights, hidden states and gradients that go down.
    """

    layouts: dict[str, Layout]
    wave: WaveShape
    resident: frozenset[str]
    dtype: torch.dtype
    waiting: frozenset[str] = frozenset()

    @property
    def boundary_bytes(self) -> int:
        """Bytes of one boundary of the largest wave."""
        return self.wave.numel * self.dtype.itemsize

    @property
    def slot_numel(self) -> int:
        """Elements of a download slot: the largest decoder layer."""
        names = [name for name in self.layouts if name not in (EMBEDDING, HEAD)]
        return max(self.layouts[name].numel for name in names)


def sizes_of(decoder: Decoder, plan: Plan, dtype: torch.dtype) -> Sizes:
    """Return the sizes a plan implies for a model."""
    layouts = {p.name: Layout.of(p.tensors, dtype.itemsize) for p in decoder.parts}
    rows = max(rows for _, _, rows in wave_rows(plan))
    micro = max(group.micro_batch for group in plan.groups)
    wave = WaveShape(rows, min(micro, rows), plan.seq_len, decoder.hidden_size)
    resident = {part.name for part in plan.parts if part.weights == "resident"}
    waiting = {p.name for p in plan.parts if p.gradient.drain == "as-consumed"}
    ends = {EMBEDDING, HEAD}
    return Sizes(layouts, wave, frozenset(resident | ends), dtype, frozenset(waiting))


def _part_buffers(sizes: Sizes) -> dict[str, int]:
    """Return the bytes of weights and of gradients, or of the buffers they pass."""
    wanted: dict[str, int] = {}
    size = {name: x.numel * sizes.dtype.itemsize for name, x in sizes.layouts.items()}
    for name in sizes.layouts:
        wanted[f"weight {name}"] = size[name]
        if name not in sizes.waiting:
            wanted[f"gradient {name}"] = size[name]
    if sizes.waiting:
        largest = max(size[name] for name in sizes.waiting)
        wanted |= {f"consumed {number}": largest for number in range(CONSUMED_BUFFERS)}
    return wanted


def host_arena(sizes: Sizes, plan: Plan, *, pin: bool) -> HostArena:
    """Allocate weights, gradients, and boundaries that wait in host memory."""
    wanted = _part_buffers(sizes)
    for index, home in enumerate(plan.homes):
        if home == Home.CPU:
            wanted[f"boundary {index}"] = sizes.boundary_bytes
    if Home.NVME in plan.homes:
        for number in range(BOUNCE_BUFFERS):
            wanted[f"bounce {number}"] = sizes.boundary_bytes
    return HostArena(wanted, pin=pin)


def boundary_homes(
    plan: Plan,
    sizes: Sizes,
    arena: HostArena,
    streams: Streams,
    tier: Store | None,
    workers: ThreadPoolExecutor,
) -> dict[int, HostHome | NvmeHome]:
    """Make the home of every boundary that leaves the device.

    Raises:
        InvalidInput: If the plan has NVMe homes and no tier was given.
    """
    homes: dict[int, HostHome | NvmeHome] = {}
    bounce = None
    if Home.NVME in plan.homes:
        if tier is None:
            raise InvalidInput("scratch", None, "the plan uses NVMe: name a folder")
        buffers = [
            arena.buffer(f"bounce {number}", sizes.dtype)
            for number in range(BOUNCE_BUFFERS)
        ]
        bounce = BounceBuffers(buffers, streams)
    for index, home in enumerate(plan.homes):
        name = f"boundary {index}"
        if home == Home.CPU:
            host = arena.buffer(name, sizes.dtype)
            homes[index] = HostHome(name, host, streams)
        elif home == Home.NVME:
            assert tier is not None
            assert bounce is not None
            homes[index] = NvmeHome(f"boundary-{index}", tier, bounce, streams, workers)
    return homes


def shared_sums(sizes: Sizes, plan: Plan, *, tied: bool) -> list[frozenset[str]]:
    """Return which parts may sum their gradients in one buffer.

    With one wave a layer is drained before the next one begins, and the head before
    the embedding begins; with several, every part keeps its sum until the last.
    """
    if len(wave_rows(plan)) > 1:
        return []
    layers = frozenset(name for name in sizes.layouts if name not in (EMBEDDING, HEAD))
    return [layers] if tied else [layers, frozenset((EMBEDDING, HEAD))]


_ASKED = re.compile(r"Tried to allocate ([0-9.]+ [KMG]iB)")


@contextlib.contextmanager
def device_memory_for(what: str) -> Iterator[None]:
    """Turn the allocator's error into one that says what was asked and what to do.

    Raises:
        OutOfMemory: ``gpu``, with the size of the request that failed.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        match = _ASKED.search(str(error))
        asked = parse_bytes(match[1]) if match else 0
        free, total = torch.cuda.mem_get_info()
        detail = (
            f"while {what}; {format_bytes(free)} of {format_bytes(total)} are free. "
            "Use a smaller batch or micro-batch, or plan with a lower gpu_cap"
        )
        raise OutOfMemory("gpu", asked, detail) from error
