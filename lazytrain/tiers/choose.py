"""Which backend moves the bytes: the named one, or an error."""

from __future__ import annotations

import logging
from pathlib import Path

from lazytrain.errors import InvalidInput
from lazytrain.tiers.backend import Backend, BackendName
from lazytrain.tiers.file_layer import FileLayer
from lazytrain.tiers.gds_probe import GdsState, probe_gds
from lazytrain.tiers.posix import PosixBackend

_LOG = logging.getLogger(__name__)


def choose_backend(
    name: BackendName, path: Path, chunk_bytes: int, num_threads: int, layer: FileLayer
) -> Backend:
    """Return the backend asked for; ``auto`` is ``gds`` where it works, else ``posix``.

    Raises:
        InvalidInput: If the named backend cannot work here; the message says why.
    """
    if name == "posix":
        return PosixBackend(path, chunk_bytes, num_threads, layer)
    state = probe_gds()
    if name == "auto":
        if state.is_direct:
            return _kvikio(path, state, num_threads, is_compat=False)
        _LOG.info("NVMe backend: posix, because %s", state.reason)
        return PosixBackend(path, chunk_bytes, num_threads, layer)
    if name == "gds" and not state.is_direct:
        remedy = f"GPUDirect Storage is missing ({state.reason}); {state.remedy}"
        raise InvalidInput("backend", name, remedy)
    if not state.can_import:
        remedy = f"kvikio cannot run here ({state.reason}); {state.remedy}"
        raise InvalidInput("backend", name, remedy)
    return _kvikio(path, state, num_threads, is_compat=name == "compat")


def _kvikio(
    path: Path, state: GdsState, num_threads: int, *, is_compat: bool
) -> Backend:
    """Open the kvikio backend; imported here because the package is optional."""
    from lazytrain.tiers.kvikio_backend import KvikioBackend

    return KvikioBackend(path, num_threads, is_compat=is_compat, note=state.reason)
