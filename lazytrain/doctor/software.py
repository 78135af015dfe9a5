"""Compiler, native kernels and package versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from lazytrain.doctor.report import Check
from lazytrain.errors import LazyTrainError

_NEEDED = ("torch", "transformers", "pyscipopt", "pydantic", "safetensors", "datasets")
_OPTIONAL = {
    "deepspeed": "baselines",
    "snakemake": "pipeline",
    "kvikio-cu13": "gds",
    "gguf": "gguf",
    "wandb": "tracking",
}


def checks(build_kernels: bool) -> Iterator[Check]:
    """Yield the checks of the software."""
    yield _compiler()
    if build_kernels:
        yield _kernels()
    yield Check(name="python", value=platform.python_version(), verdict="ok")
    yield Check(name="kernel", value=platform.release(), verdict="ok")
    for package in _NEEDED:
        yield _version(package, None)
    for package, extra in _OPTIONAL.items():
        yield _version(package, extra)


def _compiler() -> Check:
    """Look for a C++ compiler, which the native kernels need."""
    path = shutil.which("g++") or shutil.which("c++")
    if path is None:
        remedy = "install g++: without it the optimizer runs its slower torch kernel"
        return Check(name="compiler", value="none", verdict="warn", remedy=remedy)
    asked = [path, "-dumpfullversion", "-dumpversion"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return Check(name="compiler", value=f"{path} {found.stdout.strip()}", verdict="ok")


def _kernels() -> Check:
    """Construct the host optimizer, which builds its kernel, and say what runs."""
    import torch

    from lazytrain.config import OptimizerSettings

    try:
        adamw: Any = importlib.import_module("lazytrain.optim.adamw")
        kernel = str(adamw.HostAdamW(OptimizerSettings(), torch.bfloat16).kernel)
    except (LazyTrainError, ImportError, OSError, RuntimeError) as error:
        value = str(error).partition("\n")[0]
        remedy = "see compiler; the build log is in the error above"
        return Check(name="kernels", value=value, verdict="fail", remedy=remedy)
    if kernel.startswith("torch"):
        remedy = "the native kernel did not build: install g++ and ninja"
        value = f"optimizer: {kernel}"
        return Check(name="kernels", value=value, verdict="warn", remedy=remedy)
    return Check(name="kernels", value=f"optimizer: {kernel}", verdict="ok")


def _version(package: str, extra: str | None) -> Check:
    """Return the version of a package; a missing extra is no fault."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if extra is None:
            remedy = "pip install lazytrain"
            return Check(name=package, value="missing", verdict="fail", remedy=remedy)
        remedy = f"only if wanted: pip install 'lazytrain[{extra}]'"
        return Check(name=package, value="not installed", verdict="ok", remedy=remedy)
    return Check(name=package, value=version, verdict="ok")
