"""What is replaced in DeepSpeed 0.19.8 so that ZeRO-Infinity trains as ZeRO-3 does.

Three faults, none of which raises anything:

* A sub-group's gradients are read to the places of its parameters, which direct I/O
  takes only at multiples of the disk's sector. After a parameter of odd size they are
  not, and the read is refused. `cut_at_pages` keeps what lies before the first and
  after the last whole page of a gradient in memory: under 4 KiB and 4 KiB a thread.
  Parameters that move to page-locked memory at the start go through a read buffer.
* Refused, short and failed requests pass for finished ones. `checked_handles` compares
  what is read with what was written (`swap_io`).
* Where the accelerator is the CPU, a parameter that is gathered is no copy but the swap
  buffer itself. Checkpointing keeps it for the backward pass, after the buffer has
  gone to another parameter. `gathers_copies` copies. A GPU has always had a copy.

All is replaced for the whole process, which such a row has to itself.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from lazytrain.baselines.swap_io import PAGE_BYTES, CheckedHandle, Ledger
from lazytrain.errors import InvalidInput

KNOWN_VERSIONS = ("0.19.8",)


def refuse_unknown(version: str) -> None:
    """Let only those releases pass whose sources the replacements were written for.

    Raises:
        InvalidInput: If the release is another.
    """
    if version.partition("+")[0] not in KNOWN_VERSIONS:
        proved = " or ".join(KNOWN_VERSIONS)
        remedy = (
            "its swapping to disk trains wrongly unless parts of it are replaced, and "
            f"that is proved for {proved}: pip install deepspeed=={KNOWN_VERSIONS[-1]}"
        )
        raise InvalidInput("DeepSpeed", version, remedy)


def cut_at_pages(
    swapper: Any, tensors: list[Tensor], offsets: list[int]
) -> tuple[list[Tensor], list[int]]:
    """Cut gradients so that what is swapped starts and ends at whole pages.

    Replaces ``OptimizerSwapper._adjust_for_misaligned_lengths``, which looks at lengths
    alone. DeepSpeed keeps pieces below its least size in memory.

    Args:
        swapper: DeepSpeed's, for its least size and the multiple it needs of lengths.
        tensors: Flat gradients of one sub-group.
        offsets: Where each belongs in the sub-group, in elements.
    """
    pieces, places = [], []
    for tensor, offset in zip(tensors, offsets, strict=True):
        head = -offset % (PAGE_BYTES // tensor.element_size())
        place = offset
        for piece in tensor.split(_cuts(swapper, tensor.numel(), head)):
            if piece.numel():
                # A view that stays in memory would keep the whole gradient there.
                is_swapped = swapper.is_swappable_tensor(numel=piece.numel())
                pieces.append(piece if is_swapped else piece.clone())
                places.append(place)
            place += piece.numel()
    return pieces, places


def _cuts(swapper: Any, length: int, head: int) -> list[int]:
    """Return lengths of a gradient's pieces, its first whole page after ``head``."""
    body = max(length - head, 0) // swapper.numel_alignment * swapper.numel_alignment
    if swapper.is_swappable_tensor(numel=body):
        return [head, body, length - head - body]
    if swapper.is_swappable_tensor(numel=length):
        return [length // 2, length - length // 2]  # each below the least size
    return [length]


def checked_handles(load: Any, ledger: Ledger) -> Any:
    """Return ``AsyncIOBuilder.load`` with file handles that check what they read."""

    def loaded(builder: Any, verbose: bool = True) -> SimpleNamespace:
        operator = load(builder, verbose=verbose)

        def handle(**settings: Any) -> CheckedHandle:
            block_bytes = settings["block_size"]
            threads = settings["intra_op_parallelism"]
            real = operator.aio_handle(**settings)
            return CheckedHandle(real, ledger, block_bytes, threads)

        return SimpleNamespace(aio_handle=handle)

    loaded.replaces = load  # type: ignore[attr-defined]
    return loaded


def gathers_copies(start: Any) -> Any:
    """Return the start of a gather of one process that copies out of swap buffers.

    Args:
        start: ``__init__`` of ``NoGatherHandle`` or ``NoGatherCoalescedHandle``.
    """
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

    def started(handle: Any, parameters: Any) -> None:
        start(handle, parameters)
        several = parameters if isinstance(parameters, list) else [parameters]
        for parameter in several:
            held = parameter.ds_tensor
            is_swapped = held.final_location == OffloadDeviceEnum.nvme
            if is_swapped and parameter.data.device == held.device:
                parameter.data = parameter.data.clone()

    started.replaces = start  # type: ignore[attr-defined]
    return started


def _original(function: Any) -> Any:
    """Return what a function replaces, or itself."""
    return getattr(function, "replaces", function)


def replace_faulty_parts() -> Ledger:
    """Replace what is faulty, once or again, and return the new ledger of swap files.

    Raises:
        InvalidInput: If this DeepSpeed is not known.
    """
    import deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.runtime.swap_tensor import optimizer_utils, partitioned_param_swapper
    from deepspeed.runtime.zero import partition_parameters

    refuse_unknown(deepspeed.__version__)
    ledger = Ledger()
    AsyncIOBuilder.load = checked_handles(_original(AsyncIOBuilder.load), ledger)
    # Its 1024 bytes are less than the sector of many disks.
    optimizer_utils.AIO_ALIGNED_BYTES = PAGE_BYTES
    partitioned_param_swapper.AIO_ALIGNED_BYTES = PAGE_BYTES
    optimizer_utils.OptimizerSwapper._adjust_for_misaligned_lengths = cut_at_pages
    for name in ("NoGatherHandle", "NoGatherCoalescedHandle"):
        handle = getattr(partition_parameters, name)
        handle.__init__ = gathers_copies(_original(handle.__init__))
    return ledger
