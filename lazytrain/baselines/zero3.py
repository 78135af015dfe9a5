"""ZeRO-3 with optimizer and parameter offload, by the real DeepSpeed package.

One process, activation checkpointing as Hugging Face offers it, CPUAdam, clipping by
global norm; bf16 on a GPU, fp32 on a CPU. DeepSpeed changes the process it lives in, so
such a row runs in a process of its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lazytrain.baselines.finished import FinishedStep, Stopwatch
from lazytrain.baselines.initial import build_model
from lazytrain.baselines.operators import one_build_at_a_time
from lazytrain.baselines.zero_disk import disk_io, disk_offload
from lazytrain.baselines.zero_overrides import replace_faulty_parts
from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.executor.protocol import Peaks, StepResult
from lazytrain.models.decoder import Decoder
from lazytrain.profile.memory import gpu_peak_bytes, host_peak_bytes
from lazytrain.profile.setup import EngineSetup


@dataclass(frozen=True)
class ZeroOptions:
    """What differs between the rows of this system.

    ``nvme_path`` puts optimizer state and parameters on a disk, through buffers that
    hold ``largest_parameter`` elements at least; ``liger`` replaces
    Qwen2's kernels and fuses head and loss. ``persistence_threshold`` is the size in
    elements from which a parameter is partitioned and gathered; None: DeepSpeed's own.
    """

    nvme_path: str | None = None
    largest_parameter: int = 0
    liger: bool = False
    persistence_threshold: int | None = None


def _offload(options: ZeroOptions, is_cuda: bool) -> dict[str, Any]:
    """Return the targets of optimizer state and parameters, and their I/O."""
    if options.nvme_path is not None:
        path, largest = options.nvme_path, options.largest_parameter
        return disk_offload(path, largest, pin_memory=is_cuda)
    target = {"device": "cpu", "pin_memory": is_cuda}
    return {"offload_optimizer": target, "offload_param": target}


def deepspeed_config(setup: EngineSetup, options: ZeroOptions) -> dict[str, Any]:
    """Return DeepSpeed's configuration: one micro-batch of the whole batch."""
    settings: OptimizerSettings = setup.optimizer
    is_cuda = setup.device.type == "cuda"
    threshold: dict[str, Any] = {}
    if options.persistence_threshold is not None:
        name = "stage3_param_persistence_threshold"
        threshold = {name: options.persistence_threshold}
    aio = {} if options.nvme_path is None else {"aio": disk_io()}
    return {
        **aio,
        "train_micro_batch_size_per_gpu": setup.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": settings.max_grad_norm,
        "bf16": {"enabled": setup.dtype == torch.bfloat16},
        "zero_optimization": {
            "stage": 3,
            **_offload(options, is_cuda),
            "overlap_comm": is_cuda,
            "contiguous_gradients": True,
            **threshold,
        },
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": settings.learning_rate,
                "betas": list(settings.betas),
                "eps": settings.eps,
                "weight_decay": settings.weight_decay,
            },
        },
        "wall_clock_breakdown": False,
        "steps_per_print": 10**9,
    }


def _start_one_process_group(is_cuda: bool) -> None:
    """Join a group of one; no port is opened, so that runs never collide."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    if not is_cuda:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    distributed: Any = torch.distributed
    if not distributed.is_initialized():
        distributed.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=distributed.HashStore(),
            rank=0,
            world_size=1,
        )


class ZeroEngine:
    """DeepSpeed as an engine of the training loop."""

    kernel = "DeepSpeedCPUAdam"
    optimizer_state = "fp32"
    master = "fp32"

    def __init__(self, setup: EngineSetup, options: ZeroOptions) -> None:
        self._device = setup.device
        is_cuda = setup.device.type == "cuda"
        _start_one_process_group(is_cuda)
        if options.liger:
            _patch_with_liger(setup.model_config)
        import deepspeed

        if options.nvme_path is not None:
            replace_faulty_parts()
        decoder = Decoder(setup.model_config)
        self.num_parameters = decoder.num_parameters
        model = build_model(
            setup.model_config,
            setup.seed,
            setup.dtype,
            setup.device,
            setup.state_dict,
        )
        model.config.use_cache = False
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        with one_build_at_a_time():
            self._engine, *_ = deepspeed.initialize(
                model=model,
                model_parameters=list(model.parameters()),
                config=deepspeed_config(setup, options),
                dist_init_required=False,
            )
        self._gathered: Any = deepspeed.zero.GatheredParameters

    def _loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over supervised tokens, as the model takes it."""
        output = self._engine(
            input_ids=batch.input_ids.to(self._device),
            attention_mask=batch.attention_mask.to(self._device),
            labels=batch.labels.to(self._device),
            use_cache=False,
        )
        loss: Tensor = output.loss
        return loss

    def train_step(self, batch: Batch, learning_rate: float) -> FinishedStep:
        """Run forward, backward and step; DeepSpeed waits for the host itself."""
        watch = Stopwatch()
        if batch.num_supervised == 0:
            return FinishedStep(StepResult(0.0, None, skipped=True))
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = self._loss(batch)
        value = loss.item()
        watch.lap("forward")
        if not math.isfinite(value):
            return FinishedStep(StepResult(value, None, True, watch.laps))
        self._engine.backward(loss)
        watch.lap("backward")
        self._engine.step()
        watch.lap("optimizer")
        norm = self._engine.get_global_grad_norm()
        found = None if norm is None else float(norm)
        return FinishedStep(StepResult(value, found, False, watch.laps))

    @torch.no_grad()
    def evaluate_loss(self, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of supervised tokens."""
        self._engine.eval()
        count = batch.num_supervised
        total = self._loss(batch).item() * count if count else 0.0
        self._engine.train()
        return total, count

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield weights by Hugging Face name, one gathered at a time."""
        for name, parameter in self._engine.module.named_parameters():
            with self._gathered([parameter]):
                yield name, parameter.detach().to("cpu", copy=True)

    def drain(self) -> None:
        """Wait for the device; updates are never behind."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def peaks(self) -> Peaks:
        """Return peak memory."""
        return Peaks(gpu_peak_bytes(), host_peak_bytes())

    def close(self) -> None:
        """Release DeepSpeed's engine and leave the group."""
        self._engine.destroy()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _patch_with_liger(model_config: Any) -> None:
    """Replace Qwen2's kernels by Liger's, head and loss fused.

    Raises:
        InvalidInput: If the model is of another family.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_qwen2

    from lazytrain.errors import InvalidInput

    if model_config.model_type != "qwen2":
        remedy = "zero3-offload-liger knows Qwen2 only; use zero3-offload"
        raise InvalidInput("model", model_config.model_type, remedy)
    apply_liger_kernel_to_qwen2(cross_entropy=False, fused_linear_cross_entropy=True)


def build(setup: EngineSetup) -> ZeroEngine:
    """Build the row ``zero3-offload``."""
    return ZeroEngine(setup, ZeroOptions())


def build_liger(setup: EngineSetup) -> ZeroEngine:
    """Build the row ``zero3-offload-liger``."""
    return ZeroEngine(setup, ZeroOptions(liger=True))
