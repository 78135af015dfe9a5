"""Solved plans of one measured instance, run as they are: predicted beside measured.

For the plans behind the measured Table 7, with and without a disk. Prints one JSON
line, and writes it to ``$OUT/nvme_plan.json`` if OUT is set.

    python benchmarks/nvme_plan.py results/nvme/h200/*.plan.json --scratch /data
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from throughput import measure

from lazytrain.config import OptimizerSettings
from lazytrain.executor.engine import EngineOptions, StreamingEngine
from lazytrain.models.scales import model_config
from lazytrain.provenance import collect
from lazytrain.records import read
from lazytrain.schedule.plan import Home, Plan
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.train.scratch import nvme_bytes

TYPES = {"fp32": "adamw", "8bit": "cpu_adamw_8bit", "hybrid": "hybrid_adamw_8bit"}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--body", default=None, help="default: as planned")
    parser.add_argument("--threads-nvme", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    return parser.parse_args()


def settings_of(plan: Plan) -> OptimizerSettings:
    """Return the optimizer that a plan was made for."""
    state = plan.parts[0].optimizer_state
    fraction = {"eight_bit_fraction": state.eight_bit_fraction}
    master = {} if state.master == "fp32" else {"master": state.master}
    values = {"type": TYPES[state.format]} | fraction | master
    return OptimizerSettings.model_validate(values)


def run(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Measure one plan, with a tier of its own if it needs one."""
    args.batch, args.seq_len = plan.batch, plan.seq_len
    with contextlib.ExitStack() as stack:
        tier = None
        if needed := nvme_bytes(plan):
            made = NvmeTier(args.scratch, needed, num_threads=args.threads_nvme)
            tier = stack.enter_context(made)
        engine = StreamingEngine(
            model_config(plan.model),
            plan,
            settings_of(plan),
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
            options=EngineOptions(body=args.body),
            tier=tier,
        )
        stack.callback(engine.close)
        found = measure(args, engine)
        described = tier.describe() if tier is not None else {}
    seen = plan.prediction
    return {
        "plan": plan.name,
        "plan_sha256": plan.sha256,
        "homes": {home.value: plan.count(home) for home in Home},
        "predicted_step_s": seen.step_s if seen else None,
        "predicted_exposed_s": seen.exposed_s if seen else {},
        "tier": described,
        **found,
    }


def main() -> None:
    """Measure every plan; print, write."""
    args = parse()
    args.scratch.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": "nvme_plan",
        "plans": [run(args, read(Plan, path)) for path in args.plans],
        "provenance": collect().model_dump(mode="json"),
    }
    line = json.dumps(record)
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / "nvme_plan.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
