"""The kvikio backends: ``gds`` (cuFile, disk to GPU) and ``compat`` (its own threads).

No machine at hand has the nvidia-fs driver: ``gds`` is written to kvikio's contract and
not verified on hardware. ``compat`` runs the same calls without that driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from lazytrain.tiers.backend import failed_call, short_transfer


class KvikioBackend:
    """Reads and writes through ``kvikio.CuFile``.

    Args:
        path: The tier's file, preallocated.
        num_threads: Threads of kvikio's pool (it is one per process).
        is_compat: Run without cuFile; host memory goes through POSIX calls.
        note: What was seen of GPUDirect Storage, for the record.
    """

    takes_device = True

    def __init__(
        self, path: Path, num_threads: int, *, is_compat: bool, note: str
    ) -> None:
        import kvikio
        import kvikio.defaults

        self.name = "compat" if is_compat else "gds"
        self.direct = not is_compat
        self.note = note
        self._path = path
        mode = kvikio.CompatMode.ON if is_compat else kvikio.CompatMode.OFF
        kvikio.defaults.set({"compat_mode": mode, "num_threads": num_threads})
        self._file: Any = kvikio.CuFile(path, "r+")

    def write(self, key: str, offset: int, data: Tensor) -> None:
        """Write all of ``data`` at ``offset`` (see Backend)."""
        found = self._call(key, "write", data, offset)
        if found != data.numel():
            raise short_transfer(key, self._path, "written", data.numel(), found)

    def read(self, key: str, offset: int, out: Tensor) -> None:
        """Fill all of ``out`` from ``offset`` (see Backend)."""
        found = self._call(key, "read", out, offset)
        if found != out.numel():
            raise short_transfer(key, self._path, "read", out.numel(), found)

    def _call(self, key: str, verb: str, data: Tensor, offset: int) -> int:
        """Run one call to its end and return the bytes moved."""
        start = self._file.pwrite if verb == "write" else self._file.pread
        # A host tensor offers its bytes through NumPy, a device tensor by itself.
        buffer = data if data.is_cuda else data.numpy()
        try:
            return int(start(buffer, data.numel(), offset).get())
        except OSError as error:
            raise failed_call(key, self._path, verb, error) from error
        except RuntimeError as error:
            # kvikio reports a failed system call and an early end of file as these.
            wrapped = OSError(None, str(error))
            raise failed_call(key, self._path, verb, wrapped) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
