"""What every system is built from: the same model, data shape and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lazytrain.config import ExecutorSettings, NvmeSettings, OptimizerSettings
from lazytrain.schedule.plan import Plan


@dataclass(frozen=True)
class EngineSetup:
    """The inputs of one engine, ours or a rival's.

    Attributes:
        model_config: Hugging Face configuration of the decoder.
        state_dict: Weights by Hugging Face name; None draws them from ``seed``.
        optimizer: AdamW's settings.
        executor: Chunks and micro-batches where a system has a choice.
        batch: Sequences of one step.
        seq_len: Longest sequence in tokens.
        dtype: Type of weights and hidden states.
        device: Where to compute.
        seed: Seed of the initial weights.
        scratch: Folder for files on NVMe.
        nvme: How they are read and written.
        plan: The run's plan, where one was solved.
    """

    model_config: Any
    state_dict: Mapping[str, Tensor] | None
    optimizer: OptimizerSettings
    executor: ExecutorSettings
    batch: int
    seq_len: int
    dtype: torch.dtype
    device: torch.device
    seed: int
    scratch: Path
    nvme: NvmeSettings = field(default_factory=NvmeSettings)
    plan: Plan | None = None
