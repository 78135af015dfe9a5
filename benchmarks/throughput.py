"""Sustained training throughput of the streaming engine on one GPU.

Random weights, random tokens, every parameter trained, exact clipped AdamW. A reading
is the mean over consecutive steps after a warm-up, with the last update drained before
the clock is read. Prints one JSON line; with OUT set, also writes it there.

    python benchmarks/throughput.py --scale 3B --batch 192 --cap 70GiB
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.executor.engine import EngineOptions, StreamingEngine
from lazytrain.models.decoder import Decoder
from lazytrain.models.flops import tflops
from lazytrain.models.scales import model_config
from lazytrain.provenance import collect
from lazytrain.records import read
from lazytrain.schedule.plan import (
    Boundary,
    Gradient,
    Group,
    Home,
    OptimizerState,
    Part,
    Plan,
    Solve,
    Template,
    blocks_of,
)
from lazytrain.units import GIB, parse_bytes

MODELS = {
    "0.5B": "Qwen2.5-0.5B",
    "3B": "Qwen2.5-3B",
    "7B": "Qwen2.5-7B",
    "14B": "Qwen2.5-14B",
    "27B": "Qwen3.6-27B",
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=MODELS, default="3B")
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--order", default="layer-major")
    parser.add_argument("--save-level", default="inputs")
    parser.add_argument("--keep-layers", type=int, default=0)
    parser.add_argument("--keep-level", default="keep-0.2")
    parser.add_argument("--homes", default="", help="string over G, C, N, R")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--body", default="compile")
    parser.add_argument("--state", choices=("fp32", "8bit"), default="fp32")
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--attention", default="cudnn")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--distance", type=int, default=2)
    parser.add_argument("--loss-chunk", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cap", default="", help="device memory cap, such as 70GiB")
    parser.add_argument("--plan", type=Path, help="a solved plan instead of a made one")
    parser.add_argument("--name", default="throughput")
    return parser.parse_args()


def made_plan(args: argparse.Namespace, decoder: Decoder) -> Plan:
    """Return a plan with every boundary where --homes says, GPU by default."""
    layers = decoder.num_layers
    letters = args.homes or "G" * (layers + 1)
    names = {"G": Home.GPU, "C": Home.CPU, "N": Home.NVME, "R": Home.RECOMPUTE}
    homes = tuple(names[letter] for letter in letters)
    size = args.batch * args.seq_len * decoder.hidden_size * 2
    levels = [args.save_level] * layers
    # The last layers' graphs live shortest, so they are the ones to keep more of.
    for layer in range(layers - args.keep_layers, layers):
        levels[layer] = args.keep_level
    several = args.order == "batch-major"
    parts = tuple(
        Part(
            name=part.name,
            kind=part.kind,
            layer_type=part.layer_type,
            num_parameters=part.num_parameters,
            weight_bytes=2 * part.num_parameters,
            weights="resident" if args.resident else "streamed",
            gradient=Gradient(dtype="fp32", home="gpu" if several else "cpu"),
            optimizer_state=OptimizerState(format=args.state, master="fp32-split"),
        )
        for part in decoder.parts
    )
    return Plan(
        name=args.name,
        model=MODELS[args.scale],
        instance_sha256="",
        num_layers=layers,
        layer_types=decoder.layer_types,
        batch=args.batch,
        seq_len=args.seq_len,
        boundaries=tuple(Boundary(home=home, size_bytes=size) for home in homes),
        blocks=blocks_of(homes),
        groups=(
            Group(
                sequences=args.batch,
                micro_batch=args.micro_batch,
                order=args.order,
                save_level=tuple(levels),
            ),
        ),
        parts=parts,
        templates=tuple(
            Template(layer_type=kind, save_level=level, body=args.body)
            for kind in sorted(set(decoder.layer_types))
            for level in sorted(set(levels))
        ),
        prefetch_distance=args.distance,
        weight_slots=args.slots,
        loss_chunk_tokens=args.loss_chunk,
        optimizer_threads=args.threads,
        solve=Solve(status="heuristic", method="by hand", objective_s=0.0),
    )


def random_batch(args: argparse.Namespace, vocab: int, seed: int) -> Batch:
    """Return a full batch of random tokens, every position supervised."""
    generator = torch.Generator().manual_seed(seed)
    shape = (args.batch, args.seq_len)
    ids = torch.randint(0, vocab, shape, generator=generator)
    return Batch(ids, ids.clone(), torch.full((args.batch,), args.seq_len))


def measure(args: argparse.Namespace, engine: StreamingEngine) -> dict[str, Any]:
    """Warm up, then time consecutive steps to the last update's end."""
    vocab = engine.decoder.vocab_size
    batches = [random_batch(args, vocab, seed) for seed in range(4)]
    losses, breakdowns = [], []
    start = time.perf_counter()
    for number in range(args.warmup):
        warm = engine.train_step(batches[number % 4], 1e-5).result()
        losses.append(warm.loss)
    engine.drain()
    warm_s = time.perf_counter() - start
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    pending = None
    for number in range(args.warmup, args.warmup + args.steps):
        launched = engine.train_step(batches[number % 4], 1e-5)
        if pending is not None:
            result = pending.result()
            losses.append(result.loss)
            breakdowns.append(result.breakdown_s)
        pending = launched
    engine.drain()
    step_s = (time.perf_counter() - start) / args.steps
    assert pending is not None
    result = pending.result()
    losses.append(result.loss)
    breakdowns.append(result.breakdown_s)
    tokens_per_s = args.batch * args.seq_len / step_s
    causes = sorted({cause for spent in breakdowns for cause in spent})
    return {
        "step_s": step_s,
        "tokens_per_s": tokens_per_s,
        "tflops": tflops(engine.num_parameters, tokens_per_s),
        "warmup_s": warm_s,
        "losses": losses,
        "grad_norm": result.grad_norm,
        "breakdown_s": {
            cause: sum(spent.get(cause, 0.0) for spent in breakdowns) / len(breakdowns)
            for cause in causes
        },
        "gpu_peak_bytes": torch.cuda.max_memory_reserved(),
        "gpu_peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "host_peak_bytes": engine.peaks().host_bytes,
    }


def main() -> None:
    """Build, measure, print."""
    args = parse()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if args.cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(parse_bytes(args.cap) / total)
    config = model_config(MODELS[args.scale])
    plan = read(Plan, args.plan) if args.plan else made_plan(args, Decoder(config))
    kind = "adamw" if args.state == "fp32" else "cpu_adamw_8bit"
    settings = OptimizerSettings(type=kind, threads=args.threads)
    start = time.perf_counter()
    engine = StreamingEngine(
        config,
        plan,
        settings,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        options=EngineOptions(
            body=args.body, kernel=args.kernel, attention=args.attention
        ),
    )
    build_s = time.perf_counter() - start
    record = {
        "benchmark": args.name,
        "model": MODELS[args.scale],
        "num_parameters": engine.num_parameters,
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "plan_sha256": plan.sha256,
        "master": engine.master,
        "optimizer_state": engine.optimizer_state,
        "kernel": engine.kernel,
        "build_s": build_s,
        **measure(args, engine),
        "provenance": collect().model_dump(),
    }
    record["gpu_peak_gib"] = record["gpu_peak_bytes"] / GIB
    line = json.dumps(record)
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / f"{args.name}.json").write_text(line + "\n")
    engine.close()


if __name__ == "__main__":
    main()
