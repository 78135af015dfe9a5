"""Build the native kernels once and cache them by the hash of what they are made of.

Torch's extension loader would do the same, but it compiles torch's headers (about a
minute) and ties the binary to one Python and one torch. The kernels need neither: a
plain C interface is called through ctypes, so the system compiler alone takes a few
seconds and the result serves every Python and torch on the machine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "csrc"
_BASE: Final = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-Wall",
    "-Wno-psabi",
)
_AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
_AVX512: Final = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_UNITS: Final = {
    "dispatch.cpp": (),
    "pool.cpp": (),
    "scalar.cpp": (),
    "avx2.cpp": _AVX2,
    "avx512.cpp": _AVX512,
}


class BuildFailed(Exception):
    """The kernels could not be compiled here; the message says why."""


def cache_folder() -> Path:
    """Return where built libraries are kept (``LAZYTRAIN_CACHE`` moves it)."""
    given = os.environ.get("LAZYTRAIN_CACHE")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lazytrain"


def _compiler() -> str:
    """Return the C++ compiler: ``CXX`` if set, else g++."""
    compiler = os.environ.get("CXX", "g++")
    if platform.machine() != "x86_64":
        raise BuildFailed(f"no kernels for {platform.machine()} processors")
    if shutil.which(compiler.split()[0]) is None:
        raise BuildFailed(f"no compiler: {compiler!r} is not on PATH")
    return compiler


def _run(command: list[str]) -> None:
    """Run a compiler command.

    Raises:
        BuildFailed: With the compiler's first lines.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = "\n".join(done.stderr.splitlines()[:12])
        raise BuildFailed(f"{' '.join(command[:2])} failed:\n{lines}")


def digest(compiler: str, extra: tuple[str, ...]) -> str:
    """Hash sources, flags and compiler version."""
    version = subprocess.run(
        [*compiler.split(), "--version"], capture_output=True, text=True, check=False
    )
    state = hashlib.sha256(repr((_BASE, _UNITS, extra, version.stdout)).encode())
    for path in sorted(SOURCES.iterdir()):
        state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()[:16]


def _compile(compiler: str, folder: Path, extra: tuple[str, ...]) -> Path:
    """Compile every unit with its own flags and link them."""

    def unit(name: str, flags: tuple[str, ...]) -> str:
        target = str(folder / f"{name}.o")
        source = str(SOURCES / name)
        _run([*compiler.split(), *_BASE, *flags, *extra, "-c", source, "-o", target])
        return target

    with ThreadPoolExecutor(len(_UNITS)) as pool:
        objects = list(pool.map(unit, _UNITS.keys(), _UNITS.values()))
    library = folder / "kernels.so"
    _run(
        [*compiler.split(), "-shared", *extra, "-pthread", *objects, "-o", str(library)]
    )
    return library


def ensure(extra: tuple[str, ...] = ()) -> Path:
    """Return the path of the built library, compiling it if it is not cached.

    Args:
        extra: More compiler flags, such as a sanitizer's.

    Raises:
        BuildFailed: If there is no compiler, it fails, or no folder can be written.
    """
    compiler = _compiler()
    name = f"optim-{digest(compiler, extra)}.so"
    target = cache_folder() / name
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            _compile(compiler, Path(folder), extra).replace(target)
    except OSError as error:
        raise BuildFailed(f"cannot write {target.parent}: {error}") from error
    return target
