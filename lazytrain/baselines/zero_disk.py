"""How the ZeRO-Infinity rival reads and writes its disk (DeepSpeed 0.19).

DeepSpeed's defaults use one thread, wait for each read and write, and update sub-groups
of 10^9 elements: a model below that is one sub-group, and nothing overlaps. Here the
next sub-group is read and the last one written while the CPU updates the one between.

Up to 10^9 parameters stay on the host (``max_in_cpu``), the rest is on the disk. Those
used again within 10^9 elements would be kept, each with one of five read buffers:
beyond five DeepSpeed stops with an AssertionError, and given more buffers it stops at
a parameter asked for twice. So none is kept (``stage3_max_reuse_distance``).

As released, DeepSpeed trains wrongly on a disk and raises nothing: `zero_overrides`
says why and replaces the faulty parts, `swap_io` stops a run whose files come back
wrong. With both, losses are bit for bit those of the host's optimizer, on a disk and on
tmpfs, with all parameters on the host and with none.
"""

from __future__ import annotations

import os
from typing import Any

_MAX_THREADS = 8
_SUB_GROUP_ELEMENTS = 50_000_000
# Weight, gradient and two moments of three sub-groups: being read, updated, written.
_OPTIMIZER_BUFFERS = 12
# DeepSpeed's own size, too small for the embeddings of large vocabularies.
_PARAMETER_ELEMENTS = 100_000_000


def disk_io() -> dict[str, Any]:
    """Return DeepSpeed's ``aio`` block: deep queues and several threads."""
    return {
        "block_size": 1 << 20,
        "queue_depth": 32,
        "intra_op_parallelism": min(_MAX_THREADS, len(os.sched_getaffinity(0))),
        "single_submit": False,
        "overlap_events": True,
    }


def disk_offload(path: str, largest: int, *, pin_memory: bool) -> dict[str, Any]:
    """Return ZeRO's settings for a disk.

    Args:
        path: Folder of the swap files.
        largest: Elements of the largest parameter, which one buffer has to hold.
        pin_memory: Whether the host's tensors are page-locked.
    """
    target = {"device": "nvme", "nvme_path": path, "pin_memory": pin_memory}
    pipeline = {"pipeline_read": True, "pipeline_write": True}
    return {
        "sub_group_size": _SUB_GROUP_ELEMENTS,
        "stage3_max_reuse_distance": 0,
        "offload_optimizer": target | pipeline | {"buffer_count": _OPTIMIZER_BUFFERS},
        "offload_param": target | {"buffer_size": max(_PARAMETER_ELEMENTS, largest)},
    }
