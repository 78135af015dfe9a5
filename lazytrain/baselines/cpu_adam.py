"""The host optimizer of the rivals: DeepSpeed's CPUAdam, or torch's fused AdamW."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lazytrain.baselines.operators import one_build_at_a_time
from lazytrain.config import OptimizerSettings


@dataclass(frozen=True)
class HostOptimizer:
    """An optimizer over host parameters, the kernel it runs and its state's format."""

    optimizer: Any
    kernel: str
    state_format: str

    def step(self, learning_rate: float) -> None:
        """Take one step at this learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()


def can_compile() -> bool:
    """Whether DeepSpeed is here and its operators can be built."""
    has_compiler = shutil.which("g++") or shutil.which("c++")
    return importlib.util.find_spec("deepspeed") is not None and bool(has_compiler)


def host_optimizer(
    parameters: list[nn.Parameter], settings: OptimizerSettings, use_deepspeed: bool
) -> HostOptimizer:
    """Return AdamW over host parameters.

    Args:
        parameters: Host tensors; gradients must have the parameters' dtype, which
            CPUAdam never checks.
        settings: Rates and moments.
        use_deepspeed: Take CPUAdam (fp32 moments) where it can be built.
    """
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": settings.betas,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }
    if use_deepspeed and can_compile():
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        with one_build_at_a_time():
            adam = DeepSpeedCPUAdam(parameters, adamw_mode=True, **options)
        return HostOptimizer(adam, "DeepSpeedCPUAdam", "fp32")
    fused = torch.optim.AdamW(parameters, fused=True, **options)
    is_fp32 = parameters[0].dtype == torch.float32
    return HostOptimizer(fused, "torch-fused", "fp32" if is_fp32 else "bf16")
