"""Throughput and memory: Tables 3 and 5 of the paper as functions of records.

Every row names the model that ran, the model it stands for, the sheet and the device.
Measured cells come from records alone; printed ones stand in columns of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lazytrain.config import RunRow
from lazytrain.records import Contract, RunRecord
from lazytrain.report.frames import (
    NOT_AVAILABLE,
    Measured,
    Number,
    Printed,
    fixed,
    gigabytes,
    measured_cell,
    order,
)
from lazytrain.report.parameters import num_parameters
from lazytrain.report.predicted import Predicted, PredictedRow, by_row
from lazytrain.report.printed import Printed as PrintedRow
from lazytrain.report.printed import (
    hardware_of,
    printed_table3,
    printed_table5,
)
from lazytrain.report.recorded import Key, key_of

NO_PLACES: Final[Mapping[Key, str]] = MappingProxyType({})


class ThroughputRow(Contract):
    """One row of Table 3 or Table 5."""

    accelerator: str
    device: str
    scale: str
    system: str
    model: str
    stands_for: str
    batch: int
    seq_len: int
    tflops: Measured
    gpu_peak_gb: Measured
    cpu_peak_gb: Measured
    tokens_per_s: Measured
    padded_tokens_per_s: Measured
    master: str
    optimizer_state: str
    gpu_cap_gb: Number
    host_cap_gb: Number
    asked_host_gb: Number
    refused_gpu_gb: Number
    solve_status: str
    solve_gap: Number
    paper_hardware: str
    paper_batch: Printed
    paper_tflops: Printed
    paper_tflops_with_our_n: Number
    paper_gpu_peak_gb: Printed
    paper_cpu_peak_gb: Printed
    paper_tokens_per_s: Printed
    predicted_tflops: Predicted
    predicted_tokens_per_s: Predicted
    predicted_basis: str
    record: str


def _tflops_with_our_n(row: RunRow, printed: PrintedRow) -> str:
    """Return 6 * N * printed tokens/s in TFLOPS, with all parameters as N.

    The paper's 3B to 14B rows use a nominal N. A stand-in has another model's N, so
    its row stays empty.
    """
    if not printed.tokens_per_s or row.model != row.stands_for:
        return ""
    flops = 6 * num_parameters(row.model) * float(printed.tokens_per_s)
    return fixed(flops / 1e12, 2)


def _basis(predicted: PredictedRow | None) -> str:
    """Return what a prediction rests on; nothing where there is none."""
    if predicted is None or predicted.predicted_tflops == NOT_AVAILABLE:
        return ""
    return predicted.basis


def _asked_gb(record: RunRecord | None, status: str) -> str:
    """Return what a run that ended at one memory limit asked for, in GB.

    The host is asked for a run's whole need; a device refuses one allocation.
    """
    if record is None or record.status != status:
        return ""
    return fixed(gigabytes(record.requested_bytes), 1)


def throughput_row(
    row: RunRow,
    record: RunRecord | None,
    printed: PrintedRow,
    predicted: PredictedRow | None = None,
    place: str = "",
) -> ThroughputRow:
    """Return a table row for one row of the run sheet.

    A run that searched its batch is shown with the batch that it ran. ``place`` is the
    record's file, from which every measured cell comes.
    """
    tflops = record.tflops if record else None
    gpu = gigabytes(record.gpu_peak_bytes) if record else None
    host = gigabytes(record.host_peak_bytes) if record else None
    real = record.tokens_per_s if record else None
    padded = record.padded_tokens_per_s if record else None
    return ThroughputRow(
        **row.model_dump(include={"accelerator", "scale", "system"}),
        **row.model_dump(include={"model", "stands_for", "seq_len"}),
        batch=record.batch if record else row.batch,
        device=record.device if record else NOT_AVAILABLE,
        tflops=measured_cell(record, tflops, 4 if (tflops or 0) < 1 else 2),
        gpu_peak_gb=measured_cell(record, gpu, 3),
        cpu_peak_gb=measured_cell(record, host, 3),
        tokens_per_s=measured_cell(record, real, 1),
        padded_tokens_per_s=measured_cell(record, padded, 1),
        master=record.master if record else "",
        optimizer_state=record.optimizer_state if record else "",
        gpu_cap_gb=fixed(gigabytes(record.cap_bytes) if record else None, 1),
        host_cap_gb=fixed(gigabytes(record.host_cap_bytes) if record else None, 1),
        asked_host_gb=_asked_gb(record, "host_oom"),
        refused_gpu_gb=_asked_gb(record, "oom"),
        solve_status=(record.solve_status or "") if record else "",
        solve_gap=fixed(record.solve_gap if record else None, 6),
        paper_hardware=printed.hardware,
        paper_batch=printed.batch,
        paper_tflops=printed.tflops,
        paper_tflops_with_our_n=_tflops_with_our_n(row, printed),
        paper_gpu_peak_gb=printed.gpu_peak_gb,
        paper_cpu_peak_gb=printed.cpu_peak_gb,
        paper_tokens_per_s=printed.tokens_per_s,
        predicted_tflops=predicted.predicted_tflops if predicted else "",
        predicted_tokens_per_s=predicted.predicted_tokens_per_s if predicted else "",
        predicted_basis=_basis(predicted),
        record=place,
    )


def by_run(records: Sequence[RunRecord]) -> dict[Key, RunRecord]:
    """Return throughput records by (accelerator, scale, system)."""
    return {
        key_of(record): record for record in records if record.purpose == "throughput"
    }


def table3(
    rows: Sequence[RunRow],
    records: Sequence[RunRecord],
    paper: Path,
    predicted: Sequence[PredictedRow] = (),
    places: Mapping[Key, str] = NO_PLACES,
) -> list[ThroughputRow]:
    """Return throughput and memory by scale and system (Table 3).

    Args:
        rows: The sheet's rows to show; one without a record is ``n/a``.
        records: Run records, in any order.
        paper: Folder of printed values.
        predicted: Predicted rows, which get columns of their own.
        places: The files of the records.
    """
    printed = printed_table3(paper)

    def beside(row: RunRow) -> PrintedRow:
        hardware = hardware_of(row.accelerator)
        return printed.get((hardware, row.scale, row.system), PrintedRow())

    shown = [row for row in rows if row.table3]
    return _table(shown, records, predicted, places, beside)


def table5(
    rows: Sequence[RunRow],
    records: Sequence[RunRecord],
    paper: Path,
    predicted: Sequence[PredictedRow] = (),
    places: Mapping[Key, str] = NO_PLACES,
) -> list[ThroughputRow]:
    """Return the component ablation (Table 5); printed values belong to 27B only.

    Arguments are those of :func:`table3`.
    """
    printed = printed_table5(paper)

    def beside(row: RunRow) -> PrintedRow:
        is_printed = row.scale == "27B" and hardware_of(row.accelerator) == "H800"
        return printed.get(row.system, PrintedRow()) if is_printed else PrintedRow()

    shown = [row for row in rows if row.table5]
    return _table(shown, records, predicted, places, beside)


def _table(
    rows: Sequence[RunRow],
    records: Sequence[RunRecord],
    predicted: Sequence[PredictedRow],
    places: Mapping[Key, str],
    beside: Callable[[RunRow], PrintedRow],
) -> list[ThroughputRow]:
    """Return rows in the paper's order, each with its record and its prediction."""
    found, expected = by_run(records), by_row(predicted)
    result = []
    for row in sorted(rows, key=lambda row: order(*key_of(row))):
        key = key_of(row)
        place = places.get(key, "") if key in found else ""
        result.append(
            throughput_row(row, found.get(key), beside(row), expected.get(key), place)
        )
    return result
