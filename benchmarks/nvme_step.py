"""What NVMe homes cost a step against the same plan with those homes in DRAM.

``--move boundaries`` moves some of them; claim: at most 1 % where their traffic fits
its windows. ``--move state`` moves the optimizer state of the last ``--state-layers``
layers (0: of all parts), which costs what the step's other work does not cover. The
DRAM plan runs before and after the NVMe plan, so that a drift of the machine shows as
their difference; once ``--limit-s`` have passed the second of the two is left out.
Prints one JSON line; if OUT is set, writes it there as ``nvme_step.json`` or
``nvme_state.json``.

    python benchmarks/nvme_step.py --scale 3B --batch 64 --nvme 6,15,24 --scratch /data
    python benchmarks/nvme_step.py --move state --state-layers 6 --scratch /data
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
from lazytrain.schedule.plan import Part, Plan
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.train.scratch import nvme_bytes


def parse() -> argparse.Namespace:
    """Read the command line; what it does not offer is as throughput.py has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=MODELS, default="3B")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--move", choices=("boundaries", "state"), default="boundaries")
    parser.add_argument("--nvme", default="6,15,24", help="boundaries to move")
    parser.add_argument("--state-layers", type=int, default=6, help="last ones to move")
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
    """Return the plan whose chosen boundaries or state live where ``letter`` says."""
    moved = {int(index) for index in args.nvme.split(",") if args.move != "state"}
    args.name = f"nvme-step-{letter}"
    args.homes = "".join(
        letter if index in moved else "G" for index in range(decoder.num_layers + 1)
    )
    plan = made_plan(args, decoder)
    parts = plan.parts
    if args.move == "state" and letter == "N":
        first = plan.num_layers - args.state_layers if args.state_layers else 0
        chosen = {f"layer.{layer}" for layer in range(first, plan.num_layers)}
        parts = tuple(
            with_state_on_nvme(part)
            if part.name in chosen or not args.state_layers
            else part
            for part in plan.parts
        )
    return plan.model_copy(
        update={"read_ahead_blocks": args.read_ahead, "parts": parts}
    )


def with_state_on_nvme(part: Part) -> Part:
    """Return a part whose optimizer state lives on NVMe."""
    state = part.optimizer_state.model_copy(update={"home": "nvme"})
    return part.model_copy(update={"optimizer_state": state})


def run(args: argparse.Namespace, letter: str) -> dict[str, Any]:
    """Measure one plan with an engine and a tier of its own."""
    config = model_config(MODELS[args.scale])
    plan = plan_with(args, Decoder(config), letter)
    on_disk = nvme_bytes(plan)
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
            found = measure(args, engine)
            return {"tier": tier.describe(), "bytes": tier.used_bytes, **found}
        finally:
            engine.close()


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between two runs' losses."""
    pairs = zip(one["losses"], other["losses"], strict=True)
    return max(abs(a - b) for a, b in pairs)


def main() -> None:
    """Measure DRAM, NVMe, DRAM; print, write."""
    args = parse()
    args.scratch.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    dram, nvme = [run(args, "C")], run(args, "N")
    if time.perf_counter() - begun < args.limit_s:
        dram.append(run(args, "C"))
    dram_s = sum(found["step_s"] for found in dram) / len(dram)
    record = {
        "benchmark": "nvme_step",
        "model": MODELS[args.scale],
        "arguments": {k: str(v) for k, v in vars(args).items()},
        # Written and read once a step.
        "nvme_bytes_per_step": nvme["bytes"],
        "nvme_step_s": nvme["step_s"],
        "dram_step_s": [found["step_s"] for found in dram],
        "extra_fraction": nvme["step_s"] / dram_s - 1,
        "same_losses": all(found["losses"] == nvme["losses"] for found in dram),
        # Atomic sums do not repeat: compare with what two equal runs differ by.
        "largest_loss_difference": apart(nvme, dram[0]),
        "dram_loss_difference": apart(dram[0], dram[-1]),
        "host_peak_bytes": {
            "dram": dram[0]["host_peak_bytes"],
            "nvme": nvme["host_peak_bytes"],
        },
        "tier": nvme["tier"],
        "breakdown_s": {"dram": dram[0]["breakdown_s"], "nvme": nvme["breakdown_s"]},
        "seconds": time.perf_counter() - begun,
        "provenance": collect().model_dump(mode="json"),
    }
    line = json.dumps(record)
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        name = "nvme_state.json" if args.move == "state" else "nvme_step.json"
        (Path(out) / name).write_text(line + "\n")


if __name__ == "__main__":
    main()
