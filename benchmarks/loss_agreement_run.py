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
from torch import Tensor
from torch.nn.functional import cross_entropy

from lazytrain import systems
from lazytrain.baselines.initial import build_model
from lazytrain.config import (
    AcceleratorSettings,
    ExecutorSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
    SyntheticSettings,
)
from lazytrain.data.batches import IGNORE, Batch, batches
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
    parser.add_argument("--out", type=Path, default=None, help="default: $OUT")
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


class Reference:
    """A plain model with fp32 masters."""

    def __init__(self, args: argparse.Namespace, micro_batch: int) -> None:
        self._device = torch.device(args.device)
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[args.dtype]
        model = build_model(shape_of(args), 0, dtype, self._device)
        self._model = model.to(self._device).train()
        self._model.gradient_checkpointing_enable({"use_reentrant": False})
        self._micro_batch = micro_batch
        self._weights = [p for p in self._model.parameters() if p.requires_grad]
        self._masters = [torch.nn.Parameter(p.detach().float()) for p in self._weights]
        settings = OptimizerSettings()
        self._max_norm = settings.max_grad_norm
        self._adamw = torch.optim.AdamW(
            self._masters,
            lr=args.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def step(self, batch: Batch) -> tuple[float, float]:
        """Run one step; return the mean loss before it and the gradient's norm."""
        for master in self._masters:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for start in range(0, batch.input_ids.shape[0], self._micro_batch):
            total += self._pass(batch, slice(start, start + self._micro_batch))
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self._max_norm).item()
        self._adamw.step()
        with torch.no_grad():
            for weight, master in zip(self._weights, self._masters, strict=True):
                weight.copy_(master)
        return total / batch.num_supervised, norm

    def _pass(self, batch: Batch, rows: slice) -> float:
        """Add one micro-batch's gradient; return its summed loss."""
        ids = batch.input_ids[rows].to(self._device)
        mask = batch.attention_mask[rows].to(self._device)
        labels = torch.full_like(ids, IGNORE)
        labels[:, :-1] = batch.labels[rows, 1:].to(self._device)
        logits: Tensor = self._model(
            input_ids=ids, attention_mask=mask, use_cache=False
        ).logits
        losses = cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        torch.autograd.backward(losses / batch.num_supervised)
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is not None and master.grad is not None:
                master.grad += weight.grad.float()
                weight.grad = None
        return losses.item()


def run_reference(args: argparse.Namespace, micro_batch: int) -> dict[str, Any]:
    """Train by plain autograd with one micro-batch size."""
    _, data = data_of(args, shape_of(args))
    model = Reference(args, micro_batch)
    steps = [model.step(batch) for batch in data]
    return {
        "losses": [loss for loss, _ in steps],
        "grad_norms": [norm for _, norm in steps],
        "master": "fp32",
        "optimizer_state": "fp32",
        "kernel": "torch.optim.AdamW",
    }


def main() -> None:
    """Do one run and leave its JSON; the parent reads it."""
    args = parse()
    kind, _, size = args.child.partition("=")
    is_reference = kind == "reference"
    found = run_reference(args, int(size)) if is_reference else run_system(args, kind)
    args.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
