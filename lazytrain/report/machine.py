"""The machine as measured: Table 2 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazytrain.records import Contract, HardwareProfile
from lazytrain.report.frames import Number, fixed, gigabytes, read_csv


class MachineRow(Contract):
    """One tier or link: what it holds and how fast it is, measured and printed."""

    accelerator: str
    device: str
    tier: str
    capacity_gb: Number
    rate: Number
    unit: str
    paper_capacity: str
    paper_rate: str


def _measured(profile: HardwareProfile) -> list[tuple[str, int | None, float, str]]:
    """Return (tier, capacity in bytes, rate, unit) for each line of the table."""
    link, disk, free = profile.link, profile.disk, profile.disk_free_bytes
    tflops = profile.matmul_flops_per_s / 1e12
    rows: list[tuple[str, int | None, float, str]] = [
        ("GPU HBM", profile.gpu_memory_bytes, tflops, "TFLOP/s"),
        ("Host DRAM", profile.host_memory_bytes, profile.threads, "threads"),
        ("CPU-GPU link, to GPU", None, link.h2d / 1e9, "GB/s"),
        ("CPU-GPU link, to host", None, link.d2h / 1e9, "GB/s"),
        ("CPU-GPU link, to GPU, both busy", None, link.h2d_together / 1e9, "GB/s"),
        ("CPU-GPU link, to host, both busy", None, link.d2h_together / 1e9, "GB/s"),
        ("Local NVMe SSDs, read", free, disk.read / 1e9, "GB/s"),
        ("Local NVMe SSDs, write", free, disk.write / 1e9, "GB/s"),
    ]
    for state, rate in sorted(profile.optimizer_parameters_per_s.items()):
        rows.append((f"CPU optimizer, {state}", None, rate / 1e9, "G parameters/s"))
    return rows


def table2(profiles: Sequence[HardwareProfile], paper: Path) -> list[MachineRow]:
    """Return capacities and rates per tier (Table 2).

    Args:
        profiles: Hardware profiles, one per accelerator.
        paper: Folder of printed values; a printed tier stands beside each of its rows.
    """
    printed = {row["tier"]: row for row in read_csv(paper / "table2.csv")}
    rows = []
    for profile in sorted(profiles, key=lambda item: item.accelerator):
        for tier, capacity, rate, unit in _measured(profile):
            beside = printed.get(tier.split(",")[0], {})
            rows.append(
                MachineRow(
                    accelerator=profile.accelerator,
                    device=profile.device,
                    tier=tier,
                    capacity_gb=fixed(gigabytes(capacity), 2),
                    rate=fixed(rate, 3),
                    unit=unit,
                    paper_capacity=beside.get("capacity", ""),
                    paper_rate=beside.get("rate", ""),
                )
            )
    return rows
