"""One run of ``loss_agreement.py``: a system, or plain autograd, over given batches.

Started by it, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from loss_agreement_reference import Reference, Reference8Bit

from lazytrain import systems
from lazytrain.config import (
    AcceleratorSettings,
    ExecutorSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
    SyntheticSettings,
)
from lazytrain.data.batches import Batch, batches
from lazytrain.data.metamath import load_rows
from lazytrain.data.prompts import load_tokenizer
from lazytrain.models.scales import model_config
from lazytrain.schedule.assumed import Job, Machine, hardware_of, layers_of
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Budget
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.shapes import model_shape
from lazytrain.schedule.solve import Limits, solve
from lazytrain.train.availability import why_not
from lazytrain.train.build import build_engine
from lazytrain.train.source import Source

MODELS = {
    "mini": "3B-mini",
    "0.5B": "Qwen2.5-0.5B",
    "3B": "Qwen2.5-3B",
    "7B": "Qwen2.5-7B",
    "14B": "Qwen2.5-14B",
}
REFERENCE_8BIT = "reference-8bit"
TERABYTE = 10**12
# Only sizes count in these plans: no number of a plan is a prediction here.
ASSUMED = Machine(TERABYTE, TERABYTE, 0, 5e10, 5e10, 1.0, 1.0, 1e14, 1e9)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Losses of all systems.")
    parser.add_argument("--scale", choices=MODELS, default="3B")
    parser.add_argument("--layers", type=int, default=0, help="0: all of the model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"))
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--systems", default="", help="separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--limit-s", type=float, default=900, help="for one process")
    place = "default: $OUT, or beside --record"
    parser.add_argument("--out", type=Path, default=None, help=place)
    again = "judge and draw this record's losses again instead of running"
    parser.add_argument("--record", type=Path, default=None, help=again)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.dtype in (None, "auto"):
        args.dtype = "bfloat16" if args.device == "cuda" else "float32"
    return args


def shape_of(args: argparse.Namespace) -> Any:
    """Return the model's configuration, cut to the first layers if asked."""
    config = model_config(MODELS[args.scale])
    if args.layers:
        config.num_hidden_layers = args.layers
        config.layer_types = config.layer_types[: args.layers]
    return config


def data_of(args: argparse.Namespace, config: Any) -> tuple[Any, list[Batch]]:
    """Return the tokenizer and the same batches for everyone."""
    tokenizer = load_tokenizer("random", config.vocab_size)
    rows = load_rows("synthetic", SyntheticSettings(num_questions=600)).rows
    stream = batches(
        rows,
        tokenizer,
        batch=args.batch,
        seq_len=args.seq_len,
        seed=0,
        pad_to="max",
        allow_truncation=True,
    )
    source = iter(stream)
    return tokenizer, [next(source) for _ in range(args.steps)]


def settings_of(args: argparse.Namespace, master: str) -> PipelineConfig:
    """Return one configuration for all systems; micro-batches of a quarter."""
    purpose = Purpose(
        num_steps=args.steps, warmup_steps=0, learning_rate=args.learning_rate
    )
    executor = ExecutorSettings(
        body="compile" if args.device == "cuda" else "eager",
        dtype=args.dtype,
        micro_batch_tokens=max(1, args.batch // 4) * args.seq_len,
        chunk_bytes="4MiB",
    )
    run = AcceleratorSettings(executor=executor, throughput=purpose, quality=purpose)
    return PipelineConfig(
        accelerators={args.device: run},
        optimizer=OptimizerSettings.model_validate({"master": master}),
    )


def plan_of(
    args: argparse.Namespace, row: RunRow, settings: PipelineConfig, config: Any
) -> Plan:
    """Return the system's plan; a program gets HBM for half the boundaries."""
    shape = model_shape(config.to_dict(), row.model)
    job = Job(args.batch, args.seq_len)
    executor = settings.accelerators[args.device].executor
    layers = layers_of(shape, ASSUMED, job).model_copy(
        update={"dtype": executor.dtype, "body": executor.body}
    )
    instance = derive_instance(hardware_of(ASSUMED), layers, row, settings)
    if instance.method == "milp":
        room = (instance.layers // 2 + 3) * instance.boundary_bytes[0]
        cpu = instance.budget_bytes.cpu
        tight = {"budget_bytes": Budget(gpu=room, cpu=cpu, nvme=0)}
        instance = instance.model_copy(update=tight)
    return solve(instance, Limits(20.0, 0.01))


def run_system(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train by one system; return losses, norms and formats."""
    system, _, master = name.partition(":")
    master = master.removesuffix("-master") or "fp32-split"
    reason = why_not(system, args.device)
    if reason is not None:
        return {"not_run": reason}
    config = shape_of(args)
    tokenizer, data = data_of(args, config)
    settings = settings_of(args, master)
    row = RunRow(
        accelerator=args.device,
        scale=args.scale,
        system=system,
        model=MODELS[args.scale],
        stands_for=MODELS[args.scale],
        batch=args.batch,
        seq_len=args.seq_len,
    )
    is_planned = systems.is_planned(system)
    plan = plan_of(args, row, settings, config) if is_planned else None
    engine = build_engine(row, settings, plan, Source(config, None, tokenizer))
    try:
        steps = [engine.train_step(b, args.learning_rate).result() for b in data]
        engine.drain()
        return {
            "losses": [step.loss for step in steps],
            "grad_norms": [step.grad_norm for step in steps],
            "master": engine.master,
            "optimizer_state": engine.optimizer_state,
            "kernel": engine.kernel,
            "homes": [] if plan is None else [str(home) for home in plan.homes],
        }
    finally:
        engine.close()


def run_reference(args: argparse.Namespace, micro_batch: int) -> dict[str, Any]:
    """Train by plain autograd with one micro-batch size."""
    return trained(args, Reference(args, shape_of(args), micro_batch), "fp32")


def run_reference_8bit(args: argparse.Namespace, micro_batch: int) -> dict[str, Any]:
    """Train by plain autograd, moments in blocks of 8 bits: the format's own share."""
    return trained(args, Reference8Bit(args, shape_of(args), micro_batch), "8bit")


def trained(args: argparse.Namespace, model: Reference, state: str) -> dict[str, Any]:
    """Run a reference's steps; return losses, norms and formats."""
    _, data = data_of(args, shape_of(args))
    steps = [model.step(batch) for batch in data]
    return {
        "losses": [loss for loss, _ in steps],
        "grad_norms": [norm for _, norm in steps],
        "master": "fp32",
        "optimizer_state": state,
        "kernel": model.kernel,
    }


REFERENCES = {"reference": run_reference, REFERENCE_8BIT: run_reference_8bit}


def main() -> None:
    """Do one run and leave its JSON; the parent reads it."""
    args = parse()
    kind, _, size = args.child.partition("=")
    refer = REFERENCES.get(kind)
    found = refer(args, int(size)) if refer else run_system(args, kind)
    args.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
