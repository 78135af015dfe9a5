"""The paper's solver cases as instances, and its printed schedules as plans.

Budgets printed as GB are GiB: floor(21.55 / 0.703125) = 30, floor(15 / ..) = 21 and
floor(8 / ..) = 11 are the printed counts, while decimal GB would give 28, 19 and 10.
Window lengths are recovered from Table 7: 3.35 GB/s x 70 ms is the printed write piece
of 0.2345 GB, and 2.83 GB/s x 100 ms the read piece in window 63, a full-attention
layer; so linear-attention layers take 70 ms and full-attention layers 100 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.instance import (
    Bandwidth,
    Budget,
    Execution,
    Fixed,
    Instance,
)
from lazytrain.schedule.objective import terms
from lazytrain.schedule.plan import Home, Plan, Solve
from lazytrain.schedule.windows import Link, Pieces, Placement, place
from lazytrain.units import gib

LINEAR_S, FULL_S = 0.070, 0.100
H800 = Bandwidth(d2h=12e9, h2d=12e9, nvme_write=3.35e9, nvme_read=2.83e9)
LAYERS_27B = 64
BOUNDARY_27B = 72 * 1024 * 5120 * 2
BOUNDARY_GPT_OSS = 72 * 1024 * 2880 * 2
# Appendix A.1, boundaries by home; the rest of 0..64 is recomputed.
GPU_27B = frozenset(
    {0, 10, 15, 16, 20, 22, 23, 24, 28, 29, 32, 36, 39, 40, 41, 42, 43, 44, 48}
    | {50, 51, 52, 56, 57, 58, 59, 60, 62, 63, 64}
)
CPU_27B = frozenset(
    {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 26, 27, 30, 31, 33, 34, 35, 38, 49}
)
NVME_27B = frozenset({21})
# Uniform mandatory traffic per window under which the printed counts of both 27B
# schedules are optima of the unrestricted program.
SATURATING_BYTES = 666_500_000


def instance_27b(
    cpu_gib: float,
    name: str,
    fixed: Fixed | None = None,
    layers: int = LAYERS_27B,
    mandatory_bytes: int = 0,
) -> Instance:
    """Return the Qwen3.6-27B instance of Tables 1 and 2: batch 72, 1024 tokens."""
    kinds = tuple(
        "full_attention" if j % 4 == 3 else "linear_attention" for j in range(layers)
    )
    seconds = tuple(FULL_S if kind == "full_attention" else LINEAR_S for kind in kinds)
    return Instance(
        name=name,
        model="Qwen3.6-27B",
        layers=layers,
        layer_types=kinds,
        boundary_bytes=(BOUNDARY_27B,) * (layers + 1),
        rho_s=seconds,
        window_write_s=seconds,
        window_read_s=seconds,
        mandatory_d2h_bytes=(mandatory_bytes,) * layers,
        mandatory_h2d_bytes=(mandatory_bytes,) * layers,
        bandwidth=H800,
        budget_bytes=Budget(gpu=gib(21.55), cpu=gib(cpu_gib), nvme=gib(32)),
        fixed=fixed or Fixed(),
        execution=Execution(batch=72, seq_len=1024, micro_batch=72),
    )


def instance_gpt_oss() -> Instance:
    """Return the GPT-OSS-120B instance of Figure 8: 36 layers, batch 72.

    The paper prints neither rates nor the GPU budget. 34 boundaries of 0.3955 GiB
    fit in 13.5 GiB and 35 do not; that nothing is offloaded with 2 TiB of DRAM needs
    links saturated by the layer's weights (116.83 B parameters over 36 layers in bf16).
    """
    layers = 36
    seconds = (0.045,) * layers
    weights = (int(116.83e9 / layers) * 2,) * layers
    return Instance(
        name="figure8",
        model="GPT-OSS-120B",
        layers=layers,
        layer_types=("moe",) * layers,
        boundary_bytes=(BOUNDARY_GPT_OSS,) * (layers + 1),
        rho_s=seconds,
        window_write_s=seconds,
        window_read_s=seconds,
        mandatory_d2h_bytes=weights,
        mandatory_h2d_bytes=weights,
        bandwidth=H800,
        budget_bytes=Budget(gpu=gib(13.5), cpu=gib(2048), nvme=gib(32)),
        execution=Execution(batch=72, seq_len=1024, micro_batch=72),
    )


def printed_homes_27b() -> tuple[Home, ...]:
    """Return the homes that Appendix A.1 prints."""
    homes = [Home.RECOMPUTE] * (LAYERS_27B + 1)
    for home, members in (
        (Home.GPU, GPU_27B),
        (Home.CPU, CPU_27B),
        (Home.NVME, NVME_27B),
    ):
        for i in members:
            homes[i] = home
    return tuple(homes)


def printed_homes_gpt_oss() -> tuple[Home, ...]:
    """Return the homes of Figure 8: boundaries 1 to 3 recomputed, the rest in HBM."""
    return (Home.GPU, *(Home.RECOMPUTE,) * 3, *(Home.GPU,) * 33)


def fixed_27b() -> Fixed:
    """Return what the paper's final solve fixes: edges and GPU set, nothing more."""
    kept = [i for i, home in enumerate(printed_homes_27b()) if home != Home.RECOMPUTE]
    return Fixed(gpu=tuple(sorted(GPU_27B)), edges=tuple(pairwise(kept)))


def cases() -> dict[str, Instance]:
    """Return every published case as an instance, by name."""
    return {
        "table1": instance_27b(15, "table1", fixed_27b()),
        "27b-unrestricted": instance_27b(15, "27b-unrestricted"),
        "figure4": instance_27b(8, "figure4"),
        "figure4-restricted": instance_27b(8, "figure4-restricted", fixed_27b()),
        "figure4-saturated": instance_27b(
            8, "figure4-saturated", mandatory_bytes=SATURATING_BYTES
        ),
        "27b-saturated": instance_27b(
            15, "27b-saturated", mandatory_bytes=SATURATING_BYTES
        ),
        "figure8": instance_gpt_oss(),
    }


def table7_pieces() -> dict[Link, Pieces]:
    """Return Table 7's windows of boundary 21 with the pieces they imply, in bytes.

    Full windows carry rate x 70 ms (100 ms in window 63); the short piece is what is
    then left of the boundary. Rounded to the printed digits they are the printed ones.
    """
    write, read = H800.nvme_write * LINEAR_S, H800.nvme_read * LINEAR_S
    last = H800.nvme_read * FULL_S
    return {
        "nvme_write": {21: write, 22: write, 23: BOUNDARY_27B - 3 * write, 41: write},
        "nvme_read": {21: read, 22: read, 23: BOUNDARY_27B - 2 * read - last, 63: last},
    }


def printed_plan(
    instance: Instance,
    homes: Sequence[Home],
    pieces: dict[Link, Pieces] | None = None,
    source: str = "Appendix A.1 and Table 7",
) -> Plan:
    """Return a printed schedule as a plan for an instance.

    Args:
        instance: The instance to judge it under.
        homes: The printed homes.
        pieces: Printed windows of boundary 21; all else is placed first in first out.
        source: Where it is printed.
    """
    placement: Placement = place(instance, homes)
    for link, amounts in (pieces or {}).items():
        placement[link][21] = amounts
    value = terms(instance, homes, placement).total_s
    solve = Solve(status="heuristic", method=f"printed: {source}", objective_s=value)
    return assemble(instance, homes, placement, solve)
