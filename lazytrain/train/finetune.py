"""``lazytrain train CONFIG.yaml``: a fine-tuning outside the run sheet.

One typed file says model, data and schedule. The machine and the model's layers are
measured, a plan is solved for them (or a given one is taken), and the same loop and
executor run it as run the paper's rows.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pydantic import Field

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExecutorSettings,
    NvmeSettings,
    OptimizerSettings,
    PipelineConfig,
    Purpose,
    RunRow,
    ScheduleSettings,
    SolverSettings,
    SyntheticSettings,
)
from lazytrain.data.metamath import load_rows
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.profile.accelerator import resolve_accelerator
from lazytrain.profile.hardware import measure_hardware
from lazytrain.profile.layers import bench_for, measure_model
from lazytrain.records import Contract, RunRecord, write, write_text
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.solve import Limits, solve
from lazytrain.train.lock import hold_accelerator
from lazytrain.train.request import RunRequest
from lazytrain.train.resume import AUTO, reusable_plan
from lazytrain.train.run import guarded, train_source
from lazytrain.train.source import RANDOM, Source, load_source

log = logging.getLogger(__name__)
SCALE = "finetune"


class FineTune(Contract):
    """The configuration file of one fine-tuning.

    ``model`` is a folder or a hub id, or with ``weights: random`` a name of the shape
    table. Paths are relative to where the command runs.
    """

    model: str = Field(
        description="folder, GGUF file, hub id, or with random weights a name"
    )
    weights: Literal["pretrained", "random"] = "pretrained"
    data: str = Field(default="synthetic", description="synthetic, file or hub id")
    synthetic: SyntheticSettings = SyntheticSettings()
    train_fraction: float = Field(default=0.9, gt=0, lt=1)
    split_mode: Literal["grouped", "paper"] = "grouped"
    allow_truncation: bool = False
    pack: bool = Field(
        default=False, description="several documents per row, kept apart at borders"
    )
    out: Path = Field(description="folder for everything the run leaves")
    accelerator: str = Field(default="auto", description="auto, or a sheet id")
    batch: int = Field(ge=1)
    seq_len: int = Field(ge=2)
    num_steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    schedule: ScheduleSettings = ScheduleSettings(kind="cosine", warmup_fraction=0.03)
    eval_every: int = Field(default=0, ge=0, description="0: only at the end")
    eval_rows: int = Field(default=64, ge=1)
    save_every: int = Field(default=0, ge=0, description="0: save no checkpoint")
    keep_checkpoints: int = Field(default=2, ge=1)
    seed: int = 0
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    plan: Path | None = Field(default=None, description="a plan; empty: solve one")
    scratch: str = Field(default="", description="folder for NVMe files; empty: auto")
    nvme: NvmeSettings = NvmeSettings()
    executor: ExecutorSettings = ExecutorSettings()
    budgets: Budgets = Budgets()
    optimizer: OptimizerSettings = OptimizerSettings()
    solver: SolverSettings = SolverSettings()

    def purpose(self) -> Purpose:
        """Return the loop's settings; every step is timed."""
        return Purpose(
            num_steps=self.num_steps,
            warmup_steps=0,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            eval_every=self.eval_every,
            eval_rows=self.eval_rows,
        )

    def pipeline(self, accelerator: str) -> PipelineConfig:
        """Return the same choices as a configuration of the pipeline."""
        settings = AcceleratorSettings(
            executor=self.executor,
            budgets=self.budgets,
            throughput=self.purpose(),
            quality=self.purpose(),
        )
        return PipelineConfig(
            accelerator=accelerator,
            data=self.data,
            weights=RANDOM if self.weights == "random" else self.model,
            split_mode=self.split_mode,
            train_fraction=self.train_fraction,
            seed=self.seed,
            allow_truncation=self.allow_truncation,
            wandb=self.wandb,
            scratch=self.scratch,
            nvme=self.nvme,
            synthetic=self.synthetic,
            solver=self.solver,
            optimizer=self.optimizer,
            accelerators={accelerator: settings},
        )

    def row(self, accelerator: str) -> RunRow:
        """Return the run as a row of a sheet of its own."""
        return RunRow(
            accelerator=accelerator,
            scale=SCALE,
            system="lazytrain",
            model=self.model,
            stands_for=self.model,
            batch=self.batch,
            seq_len=self.seq_len,
        )


def prepare_data(settings: FineTune) -> tuple[Path, Path]:
    """Load, number and split the rows; return the paths of rows and manifest."""
    loaded = load_rows(settings.data, settings.synthetic)
    manifest = split_rows(
        loaded.rows,
        SplitSettings(settings.split_mode, settings.seed, settings.train_fraction),
        source=settings.data,
        skipped=loaded.skipped,
    )
    rows, split = settings.out / "rows.jsonl", settings.out / "split.json"
    write_rows(loaded.rows, rows)
    write(manifest, split)
    return rows, split


def make_plan(settings: FineTune, accelerator: str, source: Source) -> Plan:
    """Measure the machine and the layers, and solve a plan for them.

    Raises:
        InvalidInput: If the budgets are below what a step needs.
        NoSchedule: If the solver ends without a plan.
    """
    config, row = settings.pipeline(accelerator), settings.row(accelerator)
    hardware = measure_hardware(accelerator, config)
    bench = bench_for(
        source.config, accelerator, row.batch, row.seq_len, settings.executor
    )
    layers = measure_model(bench, accelerator, SCALE, row.model, settings.executor)
    instance = derive_instance(hardware, layers, row, config)
    write(hardware, settings.out / "hardware.json")
    write(layers, settings.out / "layers.json")
    write(instance, settings.out / "instance.json")
    limits = Limits(
        settings.solver.time_limit_s, settings.solver.gap, settings.solver.seed
    )
    return solve(instance, limits)


def fine_tune(settings: FineTune, resume: str = AUTO) -> RunRecord:
    """Run a fine-tuning and write its record, steps, plan and weights below ``out``.

    Args:
        settings: What to train, on what, and how.
        resume: ``auto`` goes on from the newest whole checkpoint below ``out``, if
            there is one; ``never`` starts anew; or a checkpoint or a run's folder.

    Raises:
        InvalidInput: If model, data, budgets, plan or checkpoint cannot be used.
        DeviceBusy: If another run holds the GPU.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    name = settings.model if settings.weights == "random" else None
    weights = RANDOM if name is not None else settings.model
    source = load_source(weights, name)
    rows, split = prepare_data(settings)
    request = RunRequest(
        row=settings.row(accelerator),
        config=settings.pipeline(accelerator),
        purpose="quality",
        split=split,
        rows=rows,
        out=settings.out,
        plan=settings.plan,
        save_every=settings.save_every,
        keep_checkpoints=settings.keep_checkpoints,
        resume=resume,
        pack=settings.pack,
    )
    with hold_accelerator(accelerator):
        if request.plan is None:
            plan = settings.out / "plan.json"
            _write_plan(settings, request, source, plan)
            request = request.model_copy(update={"plan": plan})
        record = guarded(request, lambda given: train_source(given, source))
    write(record, settings.out / "record.json")
    return record


def _write_plan(
    settings: FineTune, request: RunRequest, source: Source, path: Path
) -> None:
    """Write the plan of the checkpoint to go on from, or else a new one."""
    saved = reusable_plan(request)
    if saved is not None:
        write_text(saved, path)
    else:
        write(make_plan(settings, request.row.accelerator, source), path)
