"""Results at a glance: the README's first table, from recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazytrain.records import RunRecord
from lazytrain.report.frames import gigabytes, measured_cell, order
from lazytrain.report.markdown import table
from lazytrain.report.recorded import read_runs

HEADER = (
    "accelerator",
    "device",
    "model",
    "system",
    "batch",
    "TFLOPS",
    "tokens/s",
    "GPU GB",
    "host GB",
    "master, state",
)


def recorded_runs(folder: Path) -> list[RunRecord]:
    """Read every throughput record below a folder, in the tables' order.

    Raises:
        InvalidInput: If a record would mislead (:func:`recorded.read_runs`).
    """
    records = read_runs(sorted(folder.glob("**/record.json")))
    runs = [record for record in records if record.purpose == "throughput"]
    return sorted(runs, key=lambda run: order(run.accelerator, run.scale, run.system))


def glance(records: Sequence[RunRecord]) -> str:
    """Return the table, or one sentence where nothing was recorded yet."""
    if not records:
        return "No runs are recorded yet; `make table3` measures on your machine."
    return table(HEADER, [_row(record) for record in records])


def _row(record: RunRecord) -> tuple[str, ...]:
    """Return one run's cells; of one that ran out of memory, what it asked for."""
    gpu, host = gigabytes(record.gpu_peak_bytes), gigabytes(record.host_peak_bytes)
    cells = (
        measured_cell(record, record.tokens_per_s, 0),
        measured_cell(record, gpu, 1),
        measured_cell(record, host, 1),
    )
    if record.status != "ok":
        cells = ("", *_asked(record))
    return (
        record.accelerator,
        record.device,
        record.model,
        record.system,
        str(record.batch),
        measured_cell(record, record.tflops, 1),
        *cells,
        ", ".join(text for text in (record.master, record.optimizer_state) if text),
    )


def _asked(record: RunRecord) -> tuple[str, str]:
    """Return what did not fit the device or the host.

    The host is asked for a run's whole need; a device refuses one allocation.
    """
    size = gigabytes(record.requested_bytes)
    if size is None:
        return "", ""
    if record.status == "host_oom":
        return "", f"asked {size:.1f}"
    return f"{size:.1f} refused", ""
