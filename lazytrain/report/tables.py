"""Throughput and memory: Tables 3 and 5 of the paper as functions of records.

Every row names the model that ran, the model it stands for, the sheet and the device.
Measured cells come from records alone; printed ones stand in columns of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    asked_host_gb: Number
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


def _asked_host_gb(record: RunRecord | None) -> float | None:
    """Return what a run that did not fit the host asked of it, in GB."""
    if record is None or record.status != "host_oom":
        return None
    return gigabytes(record.requested_bytes)


def throughput_row(
    row: RunRow,
    record: RunRecord | None,
    printed: PrintedRow,
    predicted: PredictedRow | None = None,
) -> ThroughputRow:
    """Return a table row for one row of the run sheet.

    A run that searched its batch is shown with the batch that it ran.
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
        asked_host_gb=fixed(_asked_host_gb(record), 1),
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
    )


def by_run(records: Sequence[RunRecord]) -> dict[tuple[str, str, str], RunRecord]:
    """Return throughput records by (accelerator, scale, system)."""
    return {
        (record.accelerator, record.scale, record.system): record
        for record in records
        if record.purpose == "throughput"
    }


def table3(
    rows: Sequence[RunRow],
    records: Sequence[RunRecord],
    paper: Path,
    predicted: Sequence[PredictedRow] = (),
) -> list[ThroughputRow]:
    """Return throughput and memory by scale and system (Table 3).

    Args:
        rows: The sheet's rows to show; one without a record is ``n/a``.
        records: Run records, in any order.
        paper: Folder of printed values.
        predicted: Predicted rows, which get columns of their own.
    """
    found, printed = by_run(records), printed_table3(paper)
    expected = by_row(predicted)
    shown = [row for row in rows if row.table3]
    shown.sort(key=lambda row: order(row.accelerator, row.scale, row.system))
    return [
        throughput_row(
            row,
            found.get((row.accelerator, row.scale, row.system)),
            printed.get(
                (hardware_of(row.accelerator), row.scale, row.system), PrintedRow()
            ),
            expected.get((row.accelerator, row.scale, row.system)),
        )
        for row in shown
    ]


def table5(
    rows: Sequence[RunRow],
    records: Sequence[RunRecord],
    paper: Path,
    predicted: Sequence[PredictedRow] = (),
) -> list[ThroughputRow]:
    """Return the component ablation (Table 5); printed values belong to 27B only."""
    found, printed = by_run(records), printed_table5(paper)
    expected = by_row(predicted)
    shown = [row for row in rows if row.table5]
    shown.sort(key=lambda row: order(row.accelerator, row.scale, row.system))
    result = []
    for row in shown:
        is_printed = row.scale == "27B" and hardware_of(row.accelerator) == "H800"
        cells = printed.get(row.system, PrintedRow()) if is_printed else PrintedRow()
        key = (row.accelerator, row.scale, row.system)
        result.append(throughput_row(row, found.get(key), cells, expected.get(key)))
    return result
