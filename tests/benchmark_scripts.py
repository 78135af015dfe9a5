"""The scripts of ``benchmarks/`` as modules: they are no package and have no parent."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark_modules(*names: str) -> tuple[ModuleType, ...]:
    """Import scripts by name; their folder is on the path for that long."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return tuple(importlib.import_module(name) for name in names)
    finally:
        sys.path.remove(str(BENCHMARKS))
