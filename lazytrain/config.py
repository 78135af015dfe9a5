"""The configuration of the pipeline and the run sheet, typed and validated.

``config/config.yaml`` is read into :class:`PipelineConfig`, ``config/runs.tsv`` into
rows of :class:`RunRow`. An unknown key is an error that names it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from lazytrain.errors import InvalidInput
from lazytrain.records import Contract, M, first_problem
from lazytrain.settings_file import read_settings

Dtype = Literal["float32", "bfloat16"]
Body = Literal["eager", "compile", "liger"]
Answered = Literal["none", "sample", "full"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class SolverSettings(Contract):
    """Limits of the mixed-integer solve."""

    time_limit_s: float = Field(default=60, gt=0)
    gap: float = Field(default=0.0, ge=0)
    seed: int = 0
    threads: int = Field(default=1, ge=1)


class ExecutorSettings(Contract):
    """How a step runs where the run sheet does not say otherwise."""

    body: Body = "eager"
    dtype: Dtype = "float32"
    micro_batch_tokens: int = Field(default=16384, ge=1)
    save_level: str = "inputs"
    prefetch_distance: int = Field(default=1, ge=0)
    weight_slots: int = Field(default=3, ge=1)
    grad_slots: int = Field(default=2, ge=1)
    chunk_bytes: str = "64MiB"
    loss_chunk_tokens: int = Field(default=4096, ge=1)
    resident_weights: bool = False
    order: Literal["layer-major", "batch-major", "auto"] = Field(
        default="layer-major",
        description="layer-major takes every layer over the whole batch; batch-major "
        "takes one micro-batch after the other through the whole model, with weights "
        "and gradient sums resident in HBM; auto plans both and takes the faster",
    )
    gradient_drain: Literal["auto", "whole", "as-consumed"] = Field(
        default="auto",
        description="as-consumed keeps gradients in HBM until their update; auto does "
        "so where the host would be short of memory otherwise",
    )


class OptimizerSettings(Contract):
    """AdamW and its state format (paper, Section 3.5)."""

    type: Literal["hybrid_adamw_8bit", "cpu_adamw_8bit", "adamw", "deepspeed_adam"] = (
        "hybrid_adamw_8bit"
    )
    eight_bit_fraction: float = Field(default=0.02, ge=0, le=1)
    master: Literal["fp32-split", "bf16", "bf16-stochastic"] = "fp32-split"
    learning_rate: float = Field(default=1e-5, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    threads: int = Field(default=0, ge=0, description="0: all cores")
    state_home: Literal["cpu", "nvme", "auto"] = Field(
        default="cpu",
        description="nvme streams the state from disk around each update; auto does "
        "so for what the host cannot hold",
    )


class ScheduleSettings(Contract):
    """Learning-rate schedule over the run's steps."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    min_ratio: float = Field(default=0.0, ge=0, le=1)


class ExactMatchSettings(Contract):
    """When a training run answers test rows (paper, Figure 6), and how.

    ``sample`` answers a seeded sample of ``rows`` rows, the same one every time;
    ``full`` the whole test side, or ``test_rows`` of it.
    """

    every_epochs: float = Field(
        default=0.0, ge=0, description="epochs between samples; 0: none in between"
    )
    rows: int = Field(default=64, ge=1, description="rows of the sample")
    before: Answered = Field(default="none", description="with the initial weights")
    after: Answered = Field(default="none", description="with the trained weights")
    batch: int = Field(default=128, ge=1, description="prompts generated together")
    max_new_tokens: int = Field(
        default=0, ge=0, description="per answer; 0: by the training answers"
    )

    @property
    def is_wanted(self) -> bool:
        """Whether a run answers rows at all."""
        return self.every_epochs > 0 or {self.before, self.after} != {"none"}


class Purpose(Contract):
    """Steps and learning rate of one purpose of run."""

    num_steps: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)
    learning_rate: float = Field(gt=0)
    schedule: ScheduleSettings = ScheduleSettings()
    eval_every: int = Field(default=0, ge=0, description="0: only at the end")
    eval_rows: int = Field(default=64, ge=1)
    test_rows: int = Field(
        default=0, ge=0, description="test rows answered for exact match; 0: all"
    )
    exact_match: ExactMatchSettings = ExactMatchSettings()
    max_nonfinite_steps: int = Field(
        default=10,
        ge=0,
        description="steps in a row without a finite loss and gradient that end a run; "
        "0: none do",
    )


class Budgets(Contract):
    """What the planner may use; ``auto`` takes it from the hardware profile."""

    gpu_cap: str = "auto"
    cpu_activations: str = "auto"
    nvme_activations: str = "auto"
    host_capacity: str = "auto"
    trust_host_capacity: bool = Field(
        default=False,
        description="take host_capacity even where the system reports less free memory",
    )


class NvmeSettings(Contract):
    """How the NVMe tier works; a backend that is named is used or refused."""

    backend: Literal["auto", "gds", "compat", "posix"] = "auto"
    verify: bool = Field(default=True, description="prove each first read")
    threads: int = Field(default=8, ge=1, description="transfers in flight")


class SyntheticSettings(Contract):
    """Built-in generator of MetaMathQA-shaped rows."""

    num_questions: int = Field(default=6000, ge=1)
    seed: int = 0


class AcceleratorSettings(Contract):
    """Everything that depends on the sheet id."""

    executor: ExecutorSettings = ExecutorSettings()
    budgets: Budgets = Budgets()
    throughput: Purpose
    quality: Purpose


class PipelineConfig(Contract):
    """``config/config.yaml``."""

    accelerator: str = Field(default="auto", description="auto, or a sheet id")
    data: str = Field(default="synthetic", description="synthetic, file or hub id")
    test_data: str = Field(
        default="", description="test rows of their own, file or hub id; empty: split"
    )
    records: str = Field(
        default="runs",
        pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_.-]*[A-Za-z0-9_-])*$",
        description="run folder below results/; neither absolute nor with ..",
    )
    runs: str = "config/runs.tsv"
    weights: str = Field(default="random", description="random, a path or a hub id")
    split_mode: Literal["grouped", "paper"] = "grouped"
    train_fraction: float = Field(default=0.7, gt=0, lt=1)
    seed: int = 0
    allow_truncation: bool = False
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    scratch: str = Field(default="", description="folder for NVMe files; empty: auto")
    nvme: NvmeSettings = NvmeSettings()
    synthetic: SyntheticSettings = SyntheticSettings()
    solver: SolverSettings = SolverSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    accelerators: dict[str, AcceleratorSettings]


class RunRow(Contract):
    """One row of the run sheet: one training run of the paper."""

    accelerator: str
    scale: str
    system: str
    model: str
    stands_for: str
    batch: int = Field(ge=1)
    seq_len: int = Field(ge=2)
    table3: bool = False
    table4: bool = False
    table5: bool = False

    @field_validator("accelerator", "scale", "system")
    @classmethod
    def _is_a_wildcard(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9.-]+", value):
            raise ValueError("use letters, digits, '.' and '-' only")
        return value


def load_yaml(kind: type[M], path: Path) -> M:
    """Read a YAML file into a contract.

    Raises:
        InvalidInput: If the file is missing or breaks the contract.
    """
    return read_settings(kind, path)


def load_runs(path: Path) -> list[RunRow]:
    """Read the run sheet.

    Raises:
        InvalidInput: If the file is missing or empty, a row breaks the contract, or a
            run is listed twice.
    """
    if not path.is_file():
        raise InvalidInput("runs", str(path), "the file does not exist")
    rows: dict[tuple[str, str, str], RunRow] = {}
    # Spreadsheet programs begin a text with a byte order mark.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        for record in reader:
            place = f"{path}, line {reader.line_num}"
            row = _run_row(record, place)
            key = (row.accelerator, row.scale, row.system)
            if key in rows:
                raise InvalidInput("runs", key, f"is listed twice (in {place})")
            rows[key] = row
    if not rows:
        raise InvalidInput("runs", str(path), "the sheet has no rows")
    return list(rows.values())


def _run_row(record: dict[str | None, Any], place: str) -> RunRow:
    """Return one line of the sheet; ``place`` names it in an error."""
    if None in record:
        remedy = f"is more than the header has columns (in {place})"
        raise InvalidInput("cells", record[None], remedy)
    try:
        return RunRow.model_validate(record)
    except ValidationError as error:
        raise first_problem(error, Path(place), RunRow.__name__) from error


def find_run(rows: list[RunRow], accelerator: str, scale: str, system: str) -> RunRow:
    """Return the sheet's row for a run.

    Raises:
        InvalidInput: If the sheet has no such row.
    """
    for row in rows:
        if (row.accelerator, row.scale, row.system) == (accelerator, scale, system):
            return row
    wanted = f"{accelerator}/{scale}/{system}"
    raise InvalidInput("run", wanted, "the run sheet (config key runs) has no such row")


def rows_of(rows: list[RunRow], accelerator: str, scale: str) -> list[RunRow]:
    """Return the sheet's rows of one scale on one accelerator.

    Raises:
        InvalidInput: If there are none.
    """
    found = [r for r in rows if (r.accelerator, r.scale) == (accelerator, scale)]
    if not found:
        raise InvalidInput("scale", f"{accelerator}/{scale}", "is not in the run sheet")
    return found


def largest_row(rows: list[RunRow], accelerator: str, scale: str) -> RunRow:
    """Return the first row of a scale with the largest batch of all of them.

    Its layers are measured as that batch runs them.

    Raises:
        InvalidInput: If the sheet has none.
    """
    found = rows_of(rows, accelerator, scale)
    return found[0].model_copy(update={"batch": max(row.batch for row in found)})
