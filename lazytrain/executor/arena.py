"""One region of page-locked host memory, cut into named flat buffers.

Torch's pinned pool rounds every block up to a power of two; here the region is
allocated once at its exact size and registered with the driver in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lazytrain.errors import OutOfMemory
from lazytrain.executor.filling import Filling
from lazytrain.optim.pages import zeros
from lazytrain.units import GIB, format_bytes

_ALIGNMENT_BYTES = 4096
_RUN_BYTES = 8 * GIB  # registered piecewise: a refusal then names how far it came


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class HostArena:
    """Host memory for weights, gradients and boundaries.

    Args:
        sizes: Buffer name to size in bytes.
        pin: Register the region with CUDA, so that copies run asynchronously.

    Raises:
        OutOfMemory: ``host`` if the region cannot be allocated, ``pinned`` if the
            driver refuses to register it.
    """

    def __init__(self, sizes: dict[str, int], *, pin: bool) -> None:
        self.total_bytes = sum(_round_up(size) for size in sizes.values())
        self._registered: list[int] = []
        self._region = self._allocate()
        base = self._region.data_ptr()
        start = (-base) % _ALIGNMENT_BYTES
        self._buffers: dict[str, Tensor] = {}
        for name, size in sizes.items():
            self._buffers[name] = self._region[start : start + size]
            start += _round_up(size)
        if pin:
            self._pin()

    def _allocate(self) -> Tensor:
        wanted = self.total_bytes + _ALIGNMENT_BYTES
        try:
            # Huge pages: a driver pins and looks up 2 MiB at a time, not 4 KiB.
            return zeros(wanted, torch.uint8, torch.device("cpu"))
        except (RuntimeError, OSError) as error:
            detail = "use a smaller model or batch, 8-bit state, or more host memory"
            raise OutOfMemory("host", wanted, detail) from error

    def _pin(self) -> None:
        """Register the region, a run of whole buffers at a time.

        A copy may not cross two registrations, so no buffer is cut.
        """
        runtime = torch.cuda.cudart()
        filling = Filling(self.total_bytes)
        base, done = self._region.data_ptr(), 0
        for address, size in self._runs():
            # Pages must exist before they are locked; touching them also sizes memory
            # that a virtual machine grows on demand.
            self._region[address - base :][:size].fill_(0)
            status = runtime.cudaHostRegister(address, size, 0)
            if int(status) != 0:
                self.close()
                raise OutOfMemory(
                    "pinned",
                    self.total_bytes,
                    f"the driver registered {format_bytes(done)} and then refused "
                    f"{format_bytes(size)} (code {int(status)}): raise `ulimit -l` or "
                    "shrink the plan's host use",
                )
            self._registered.append(address)
            done += size
            filling.add(size)

    def _runs(self) -> list[tuple[int, int]]:
        """Return address and size of each run of neighbouring buffers."""
        runs: list[tuple[int, int]] = []
        for buffer in self._buffers.values():
            size = _round_up(buffer.numel())
            if runs and runs[-1][1] + size <= _RUN_BYTES:
                runs[-1] = (runs[-1][0], runs[-1][1] + size)
            else:
                runs.append((buffer.data_ptr(), size))
        return [run for run in runs if run[1] > 0]

    def buffer(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a named buffer as a flat tensor of this dtype."""
        return self._buffers[name].view(dtype)

    def buffers(self, prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all buffers of a prefix as flat tensors, by the rest of their name."""
        names = [name for name in self._buffers if name.startswith(prefix)]
        return {n.removeprefix(prefix): self.buffer(n, dtype) for n in names}

    def close(self) -> None:
        """Unregister the region; the memory goes with the last view."""
        runtime = torch.cuda.cudart() if self._registered else None
        for address in self._registered:
            assert runtime is not None
            runtime.cudaHostUnregister(address)
        self._registered.clear()
