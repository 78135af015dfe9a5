"""The executor's own benchmark in the README: no data, no pipeline, full rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lazytrain.errors import InvalidInput
from lazytrain.report.markdown import table

HEADER = (
    "device",
    "model",
    "batch",
    "cap",
    "TFLOPS",
    "tokens/s",
    "step s",
    "GPU GB",
    "host GB",
    "master, state",
    "steps",
)


def benchmarked(folder: Path) -> str:
    """Return a table of every ``throughput-*.json`` below a folder, or nothing.

    Raises:
        InvalidInput: If a file is no record of ``benchmarks/throughput.py``.
    """
    paths = sorted(folder.glob("**/throughput-*.json"))
    return table(HEADER, [_row(path) for path in paths]) if paths else ""


def _row(path: Path) -> tuple[str, ...]:
    """Return one benchmark's cells."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        given = found["arguments"]
        return (
            found["provenance"]["device"],
            found["model"],
            given["batch"],
            given["cap"],
            f"{found['tflops']:.0f}",
            f"{found['tokens_per_s']:,.0f}",
            f"{found['step_s']:.2f}",
            f"{found['gpu_peak_bytes'] / 1e9:.1f}",
            f"{found['host_peak_bytes'] / 1e9:.1f}",
            f"{found['master']}, {found['optimizer_state']}",
            given["steps"],
        )
    except (ValueError, KeyError, TypeError) as error:
        remedy = f"is no record of benchmarks/throughput.py ({error!r})"
        raise InvalidInput("path", str(path), remedy) from error
