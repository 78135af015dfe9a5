"""The scripts of ``benchmarks/`` as modules: they are no package and have no parent."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def benchmark_modules(*names: str) -> Iterator[tuple[ModuleType, ...]]:
    """Import scripts by name while their folder is on the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield tuple(importlib.import_module(name) for name in names)
    finally:
        sys.path.remove(str(BENCHMARKS))
