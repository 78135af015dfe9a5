"""What NVMe homes cost a step against the same plan with those homes in DRAM.

Claim: at most 1 % where the traffic fits its windows. The DRAM plan runs before and
after the NVMe plan, so that a drift of the machine shows as their difference; once
``--limit-s`` have passed the second of the two is left out. Prints one JSON line, and
writes it to ``$OUT/nvme_step.json`` if OUT is set.

    python benchmarks/nvme_step.py --scale 3B --batch 64 --nvme 6,15,24 --scratch /data
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from throughput import MODELS, made_plan, measure

from lazytrain.config import OptimizerSettings
from lazytrain.executor.engine import EngineOptions, StreamingEngine
from lazytrain.models.decoder import Decoder
from lazytrain.models.scales import model_config
from lazytrain.provenance import collect
from lazytrain.schedule.plan import Home, Plan
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.units import MIB


def parse() -> argparse.Namespace:
    """Read the command line; what it does not offer is as throughput.py has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=MODELS, default="3B")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--nvme", default="6,15,24", help="boundaries to move")
    parser.add_argument("--read-ahead", type=int, default=4, help="blocks")
    parser.add_argument("--body", default="compile")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=100, help="for two runs")
    parser.add_argument("--threads-nvme", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.set_defaults(
        order="layer-major",
        save_level="inputs",
        keep_layers=0,
        keep_level="keep-0.2",
        resident=False,
        state="fp32",
        threads=0,
        slots=3,
        distance=2,
        loss_chunk=8192,
    )
    return parser.parse_args()


def plan_with(args: argparse.Namespace, decoder: Decoder, letter: str) -> Plan:
    """Return the plan whose chosen boundaries live where ``letter`` says."""
    moved = {int(index) for index in args.nvme.split(",")}
    args.name = f"nvme-step-{letter}"
    args.homes = "".join(
        letter if index in moved else "G" for index in range(decoder.num_layers + 1)
    )
    return made_plan(args, decoder).model_copy(
        update={"read_ahead_blocks": args.read_ahead}
    )


def run(args: argparse.Namespace, letter: str) -> dict[str, Any]:
    """Measure one plan with an engine and a tier of its own."""
    config = model_config(MODELS[args.scale])
    plan = plan_with(args, Decoder(config), letter)
    homes = zip(plan.homes, plan.boundaries, strict=True)
    on_disk = sum(b.size_bytes + MIB for home, b in homes if home == Home.NVME)
    with NvmeTier(args.scratch, on_disk, num_threads=args.threads_nvme) as tier:
        engine = StreamingEngine(
            config,
            plan,
            OptimizerSettings(type="adamw"),
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
            options=EngineOptions(body=args.body),
            tier=tier,
        )
        try:
            return {"tier": tier.describe(), "bytes": on_disk, **measure(args, engine)}
        finally:
            engine.close()


def main() -> None:
    """Measure DRAM, NVMe, DRAM; print, write."""
    args = parse()
    args.scratch.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    dram, nvme = [run(args, "C")], run(args, "N")
    if time.perf_counter() - begun < args.limit_s:
        dram.append(run(args, "C"))
    dram_s = sum(found["step_s"] for found in dram) / len(dram)
    pairs = zip(nvme["losses"], dram[0]["losses"], strict=True)
    record = {
        "benchmark": "nvme_step",
        "model": MODELS[args.scale],
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "nvme_bytes_per_step": nvme["bytes"],
        "nvme_step_s": nvme["step_s"],
        "dram_step_s": [found["step_s"] for found in dram],
        "extra_fraction": nvme["step_s"] / dram_s - 1,
        "same_losses": all(found["losses"] == nvme["losses"] for found in dram),
        "largest_loss_difference": max(abs(a - b) for a, b in pairs),
        "tier": nvme["tier"],
        "breakdown_s": {"dram": dram[0]["breakdown_s"], "nvme": nvme["breakdown_s"]},
        "seconds": time.perf_counter() - begun,
        "provenance": collect().model_dump(mode="json"),
    }
    line = json.dumps(record)
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / "nvme_step.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
