"""The paper's solver cases as instances, and its printed schedules as plans.

Budgets printed as GB are GiB: floor(21.55 / 0.703125) = 30, floor(15 / ..) = 21 and
floor(8 / ..) = 11 are the printed counts, while decimal GB would give 28, 19 and 10.
Window lengths are recovered from Table 7: 3.35 GB/s x 70 ms is the printed write piece
of 0.2345 GB, and 2.83 GB/s x 100 ms the read piece in window 63, a full-attention
layer; so linear-attention layers take 70 ms and full-attention layers 100 ms.
"""

from __future__ import annotations

from lazytrain.schedule.instance import (
    Bandwidth,
    Budget,
    Execution,
    Fixed,
    Instance,
)
from lazytrain.units import gib

LINEAR_S, FULL_S = 0.070, 0.100
H800 = Bandwidth(d2h=12e9, h2d=12e9, nvme_write=3.35e9, nvme_read=2.83e9)
LAYERS_27B = 64
BOUNDARY_27B = 72 * 1024 * 5120 * 2
BOUNDARY_GPT_OSS = 72 * 1024 * 2880 * 2
CASES = ("table1", "figure4", "unrestricted-27b", "figure8")


def instance_27b(
    cpu_gib: float, name: str, fixed: Fixed | None = None, layers: int = LAYERS_27B
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
        mandatory_d2h_bytes=(0,) * layers,
        mandatory_h2d_bytes=(0,) * layers,
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
