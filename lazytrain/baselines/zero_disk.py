"""How the ZeRO-Infinity rival reads and writes its disk (DeepSpeed 0.19).

DeepSpeed's defaults use one thread, wait for each read and write, and update sub-groups
of 10^9 elements: a model below that is one sub-group, and nothing overlaps. Here the
next sub-group is read and the last one written while the CPU updates the one between.

A fault of DeepSpeed's own, with or without these settings: on a real disk a sub-group's
gradients came back wrong (sum of magnitudes 105.6 for 220.5) and nothing was raised.
Probable cause: they are read to addresses that parameters of odd sizes leave unaligned,
which direct I/O does not take; tmpfs takes any. There the losses are those of the host's
optimizer bit for bit in most trials: 2 of 12 differed from the second step on, one with
DeepSpeed's defaults, for a reason not found.
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
        "offload_optimizer": target | pipeline | {"buffer_count": _OPTIMIZER_BUFFERS},
        "offload_param": target | {"buffer_size": max(_PARAMETER_ELEMENTS, largest)},
    }
