"""DeepSpeed's operators: compiled on first use, minutes long, then cached.

torch guards a build by a plain lock file that a killed build leaves behind, and the
next one then waits for ever. Ours are built in a folder of our own, one process at a
time, and a lock file found there while nobody builds is a leftover.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lazytrain.errors import LazyTrainError
from lazytrain.optim.build import cache_folder

FOLDER = "TORCH_EXTENSIONS_DIR"
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
PROGRAMS = "PATH"
_REFUSED = "Unable to JIT load"
REMEDIES = {"async_io": "it needs libaio and its headers (libaio-dev, libaio-devel)"}


class OperatorRefused(LazyTrainError):
    """DeepSpeed has no way to build an operator on this machine."""


def operator_folder() -> Path:
    """Return where operators are built: as the environment says, or our cache."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else cache_folder() / "torch_extensions"


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove torch's lock files below a folder in which nobody builds."""
    found = sorted(folder.glob("*/lock")) + sorted(folder.glob("*/*/lock"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def plain_architectures(given: str) -> str:
    """Return a list of CUDA architectures without their variants, each once.

    DeepSpeed 0.19 reads ``9.0a`` as a number and fails; its operators need no variant.
    """
    names = re.split(r"[;\s]+", given.strip())
    plain = [re.sub(r"^(\d+\.\d+)[a-z](?=$|\+)", r"\1", name) for name in names]
    return ";".join(dict.fromkeys(plain))


@contextmanager
def one_build_at_a_time() -> Iterator[None]:
    """Build DeepSpeed's operators inside this block.

    The kernel drops the outer lock with the process, however it ends. A folder that
    the environment names may be shared with others: its lock files are left alone.
    This interpreter's own ninja comes first: two of different releases cannot read each
    other's logs, and each would build anew what the other has built.
    """
    is_ours = FOLDER not in os.environ
    folder = operator_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".building").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if is_ours:
            remove_leftovers(folder)
        changed = (FOLDER, ARCHITECTURES, PROGRAMS)
        given = {name: os.environ.get(name) for name in changed}
        os.environ[FOLDER] = str(folder)
        scripts = sysconfig.get_path("scripts")
        os.environ[PROGRAMS] = os.pathsep.join([scripts, given[PROGRAMS] or os.defpath])
        if named := given[ARCHITECTURES]:
            os.environ[ARCHITECTURES] = plain_architectures(named)
        try:
            yield
        finally:
            for name, value in given.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def build(with_nvme: bool) -> dict[str, float]:
    """Build what the rows of DeepSpeed and MegaTrain need; return seconds by operator.

    Args:
        with_nvme: Also the asynchronous file operator, which needs libaio.

    Raises:
        OperatorRefused: If DeepSpeed says that an operator cannot be built here.
    """
    if importlib.util.find_spec("deepspeed") is None:
        return {}
    import deepspeed.ops.op_builder as builders

    os.environ.setdefault("RANK", "0")
    wanted: dict[str, Any] = {"cpu_adam": builders.CPUAdamBuilder}
    if with_nvme:
        wanted["async_io"] = builders.AsyncIOBuilder
    seconds = {}
    with one_build_at_a_time():
        for name, builder in wanted.items():
            start = time.perf_counter()
            _load(name, builder)
            seconds[name] = time.perf_counter() - start
    return seconds


def _load(name: str, builder: Any) -> None:
    """Build and load one operator, or say what it lacks."""
    try:
        builder().load(verbose=False)
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        remedy = REMEDIES.get(name, "see DeepSpeed's ds_report")
        raise OperatorRefused(
            f"DeepSpeed cannot build its operator {name} here ({error}): {remedy}"
        ) from error
