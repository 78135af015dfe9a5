"""The paper's printed values, read from ``config/paper``.

They are shown beside measurements and compared with them; no function here returns a
measured cell. CPU stand-ins have no printed counterpart: their absolute numbers say
nothing about the paper's, only their ratios are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lazytrain.report.frames import read_csv

# Which of the paper's two machines a sheet's rows stand beside.
HARDWARE = {"gpu80": "H800", "h200": "H800", "gpu24": "RTX 3090"}


@dataclass(frozen=True)
class Printed:
    """One printed row of Table 3 or 5; texts as printed, empty where none is."""

    hardware: str = ""
    batch: str = ""
    tflops: str = ""
    tokens_per_s: str = ""
    gpu_peak_gb: str = ""
    cpu_peak_gb: str = ""


def hardware_of(accelerator: str) -> str:
    """Return the paper's machine for a sheet id; empty for ``cpu``."""
    base, _, cap = accelerator.partition("-")
    return "RTX 3090" if cap == "cap24" else HARDWARE.get(base, "")


def _printed(row: dict[str, str], hardware: str, batch: str) -> Printed:
    """Turn one CSV row into a printed row."""
    names = ("tflops", "tokens_per_s", "gpu_peak_gb", "cpu_peak_gb")
    return Printed(hardware, row[batch], **{name: row[name] for name in names})


def printed_table3(folder: Path) -> dict[tuple[str, str, str], Printed]:
    """Return Table 3 by (hardware, scale, system)."""
    return {
        (row["hardware"], row["scale"], row["system"]): _printed(
            row, row["hardware"], "batch"
        )
        for row in read_csv(folder / "table3.csv")
    }


def printed_table5(folder: Path) -> dict[str, Printed]:
    """Return Table 5 (27B on the H800) by system."""
    rows = read_csv(folder / "table5.csv")
    return {row["system"]: _printed(row, "H800", "max_batch") for row in rows}


def printed_table4(folder: Path) -> dict[tuple[str, str], str]:
    """Return exact match in percent by (scale, system)."""
    rows = read_csv(folder / "table4.csv")
    return {(row["scale"], row["system"]): row["exact_match_percent"] for row in rows}
