"""The configuration file of ``lazytrain train``: typed, validated, documented.

``config/README.md`` explains every key; ``config/examples`` has files to start from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from lazytrain.config import (
    AcceleratorSettings,
    Budgets,
    ExactMatchSettings,
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
from lazytrain.data.registry import Mixture
from lazytrain.records import Contract
from lazytrain.units import parse_bytes

RANDOM = "random"
SCALE = "finetune"
# Keys for which an empty text says that nothing is given.
MAY_BE_EMPTY: Final = ("out", "template", "plan", "test_data", "scratch")
Dataset = str | tuple[str, ...] | dict[str, float]


class FineTune(Contract):
    """The configuration file of one fine-tuning.

    ``model`` is a folder or a hub id, or with ``weights: random`` a name of the shape
    table. Paths are relative to where the command runs.
    """

    model: str = Field(
        description="folder, GGUF file, hub id, or with random weights a name"
    )
    weights: Literal["pretrained", "random"] = "pretrained"
    data: Dataset = Field(
        default="synthetic",
        description="name in dataset_info.json, synthetic, file or hub id; several as "
        "a list, or with weights",
    )
    dataset_dir: str = Field(default="data", description="folder of dataset_info.json")
    strategy: Literal["under", "over"] = Field(
        default="under",
        description="mixing by weight: under repeats no row, over uses every row",
    )
    max_samples: int | None = Field(default=None, ge=1, description="of each data set")
    test_data: Dataset = Field(
        default="", description="test rows of their own; empty: a share of data"
    )
    template: str | None = Field(
        default=None, description="named chat template; empty: the tokenizer's"
    )
    train_on_prompt: bool = Field(default=False, description="take loss on prompts too")
    mask_history: bool = Field(default=False, description="last turn's loss only")
    synthetic: SyntheticSettings = SyntheticSettings()
    train_fraction: float = Field(default=0.9, gt=0, lt=1)
    split_mode: Literal["grouped", "paper"] = "grouped"
    allow_truncation: bool = False
    pack: bool = Field(
        default=False, description="several documents per row, kept apart at borders"
    )
    group_by_length: bool = Field(
        default=False, description="rows of like length share a batch"
    )
    out: Path = Field(description="folder for everything the run leaves")
    accelerator: str = Field(default="auto", description="auto, or a sheet id")
    batch: int = Field(ge=1)
    seq_len: int = Field(ge=2)
    num_steps: int | None = Field(default=None, ge=1, description="or num_epochs")
    num_epochs: float | None = Field(
        default=None, gt=0, le=10_000, description="or num_steps"
    )
    learning_rate: float = Field(gt=0)
    schedule: ScheduleSettings = ScheduleSettings(kind="cosine", warmup_fraction=0.03)
    eval_every: int = Field(default=0, ge=0, description="0: only at the end")
    eval_rows: int = Field(default=64, ge=1)
    test_rows: int = Field(default=0, ge=0, description="answered at most; 0: all")
    exact_match: ExactMatchSettings = ExactMatchSettings(
        every_epochs=0.1, before="sample", after="full"
    )
    max_nonfinite_steps: int = Field(
        default=10,
        ge=0,
        description="steps in a row without a finite loss and gradient that end the "
        "run with exit code 4; 0: none do",
    )
    save_every: int = Field(
        default=100,
        ge=0,
        description="steps between checkpoints, one more at the end; 0: none",
    )
    keep_checkpoints: int = Field(default=2, ge=1)
    seed: int = 0
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    plan: Path | None = Field(default=None, description="a plan; empty: solve one")
    scratch: str = Field(default="", description="folder for NVMe files; empty: auto")
    executor: ExecutorSettings = ExecutorSettings()
    budgets: Budgets = Budgets()
    nvme: NvmeSettings = NvmeSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    solver: SolverSettings = SolverSettings()

    @model_validator(mode="before")
    @classmethod
    def _takes_empty_as_not_given(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            key: value
            for key, value in values.items()
            if not (value is None or (value == "" and key in MAY_BE_EMPTY))
            or key == "data"
        }

    @field_validator("data", "test_data", mode="before")
    @classmethod
    def _names_data(cls, value: Any) -> Any:
        is_named = isinstance(value, str)
        if isinstance(value, list | tuple):
            is_named = all(isinstance(name, str) for name in value)
        elif isinstance(value, dict):
            is_named = all(
                isinstance(name, str) and isinstance(weight, int | float)
                for name, weight in value.items()
            )
        if not is_named:
            raise ValueError(
                "write a name, a list of names, or names with weights as numbers"
            )
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> FineTune:
        if (self.num_steps is None) == (self.num_epochs is None):
            raise ValueError("give either num_steps or num_epochs")
        if self.pack and self.group_by_length:
            raise ValueError("give either pack or group_by_length")
        if self.train_on_prompt and self.mask_history:
            raise ValueError("give either train_on_prompt or mask_history")
        if "learning_rate" in self.optimizer.model_fields_set:
            raise ValueError(
                "optimizer.learning_rate has no use: give learning_rate by itself"
            )
        for name, size in {
            "executor.chunk_bytes": self.executor.chunk_bytes,
            "budgets.gpu_cap": self.budgets.gpu_cap,
            "budgets.cpu_activations": self.budgets.cpu_activations,
            "budgets.nvme_activations": self.budgets.nvme_activations,
            "budgets.host_capacity": self.budgets.host_capacity,
        }.items():
            if size != "auto":
                parse_bytes(size, name)
        return self

    def mixture(self, dataset: Dataset) -> Mixture:
        """Return how data sets are read and mixed."""
        return Mixture(
            dataset=dataset,
            dataset_dir=self.dataset_dir,
            strategy=self.strategy,
            max_samples=self.max_samples,
            train_on_prompt=self.train_on_prompt,
            mask_history=self.mask_history,
            seed=self.seed,
            synthetic=self.synthetic,
        )

    def purpose(self) -> Purpose:
        """Return the loop's settings; every step is timed."""
        return Purpose(
            num_steps=self.num_steps or 1,
            warmup_steps=0,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            eval_every=self.eval_every,
            eval_rows=self.eval_rows,
            test_rows=self.test_rows,
            exact_match=self.exact_match,
            max_nonfinite_steps=self.max_nonfinite_steps,
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
            data=said(self.data),
            test_data=said(self.test_data),
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


def said(dataset: Dataset) -> str:
    """Return data sets and their weights as one line of text."""
    if isinstance(dataset, str):
        return dataset
    if isinstance(dataset, dict):
        return ", ".join(f"{name}: {weight:g}" for name, weight in dataset.items())
    return ", ".join(dataset)
