"""What this machine is and how fast: one measured ``hardware.json`` per accelerator.

Nothing here is typed in by hand (paper, Table 2 lists such figures by hand): every
number comes from a copy, a matrix product or an optimizer step that just ran.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch

from lazytrain.config import AcceleratorSettings, OptimizerSettings, PipelineConfig
from lazytrain.errors import InvalidInput
from lazytrain.profile import memory
from lazytrain.profile.accelerator import cap_bytes, is_gpu
from lazytrain.profile.bandwidth import (
    fastest_s,
    make_scratch,
    measure_disk,
    measure_link,
)
from lazytrain.provenance import collect, device_name, num_cores
from lazytrain.records import HardwareProfile
from lazytrain.units import MIB, parse_bytes

_OPTIMIZER_PARAMETERS = {"cpu": 1 << 20, "cuda": 1 << 26}
_MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 64 * MIB, "cuda": 512 * MIB}


def settings_for(config: PipelineConfig, accelerator: str) -> AcceleratorSettings:
    """Return a sheet id's settings.

    Raises:
        InvalidInput: If the configuration has no such id.
    """
    if accelerator not in config.accelerators:
        known = ", ".join(config.accelerators)
        raise InvalidInput(
            "accelerator", accelerator, f"add it to accelerators (known: {known})"
        )
    return config.accelerators[accelerator]


def device_for(accelerator: str) -> torch.device:
    """Return the device that a sheet id's rows run on.

    Raises:
        InvalidInput: If the id needs CUDA and torch has none.
    """
    if not is_gpu(accelerator):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidInput(
            "accelerator",
            accelerator,
            f"torch {torch.__version__} sees no CUDA device; install a CUDA build",
        )
    return torch.device("cuda", 0)


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype for a configuration's ``float32`` or ``bfloat16``."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def scratch_folder(config: PipelineConfig) -> Path:
    """Return the folder for NVMe files: configured, or the temporary one."""
    return Path(config.scratch) if config.scratch else Path(tempfile.gettempdir())


def gpu_cap_bytes(
    config: PipelineConfig, accelerator: str, device: torch.device
) -> int:
    """Return the device memory a run may take: card, sheet id's cap, budget's cap."""
    caps = [memory.gpu_memory_bytes(device)]
    named = cap_bytes(accelerator)
    budget = settings_for(config, accelerator).budgets.gpu_cap
    if named is not None:
        caps.append(named)
    if budget != "auto":
        caps.append(parse_bytes(budget, "gpu_cap"))
    # A CPU sheet has no device memory; its budget alone says what "HBM" stands for.
    return min(cap for cap in caps if cap > 0) if max(caps) > 0 else 0


def measure_matmul(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of one large square matrix product."""
    size = _MATMUL_SIZE[device.type]
    left = torch.randn(size, size, device=device, dtype=dtype)
    right = torch.randn(size, size, device=device, dtype=dtype)

    def run() -> None:
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return 2 * size**3 / fastest_s(run)


def _update_rate(
    settings: OptimizerSettings,
    dtype: torch.dtype,
    num_parameters: int,
    is_eight_bit: bool,
) -> float:
    """Return parameters per second of the host's AdamW in one state format."""
    from lazytrain.optim.adamw import HostAdamW
    from lazytrain.optim.state import TensorSlice

    adamw = HostAdamW(settings, dtype)
    weight = torch.randn(num_parameters).to(dtype)
    gradient = torch.randn(num_parameters).to(dtype)
    slices = [TensorSlice("weight", 0, num_parameters, settings.weight_decay)]
    state = adamw.new_state(weight, slices, [is_eight_bit])
    steps = itertools.count(1)

    def update() -> None:
        adamw.update(
            state,
            gradient,
            step=next(steps),
            learning_rate=settings.learning_rate,
            scale=1.0,
        )

    return num_parameters / fastest_s(update)


def measure_optimizer(
    settings: OptimizerSettings, dtype: torch.dtype, num_parameters: int
) -> dict[str, float]:
    """Return parameters per second of the host's AdamW, by state format.

    Times of the hybrid's two shares add up, so their rates combine harmonically.
    """
    fp32 = _update_rate(settings, dtype, num_parameters, is_eight_bit=False)
    eight_bit = _update_rate(settings, dtype, num_parameters, is_eight_bit=True)
    fraction = settings.eight_bit_fraction
    hybrid = 1 / ((1 - fraction) / fp32 + fraction / eight_bit)
    return {"fp32": fp32, "8bit": eight_bit, "hybrid": hybrid}


def measure_hardware(accelerator: str, config: PipelineConfig) -> HardwareProfile:
    """Measure this machine for one accelerator; takes seconds."""
    device = device_for(accelerator)
    settings = settings_for(config, accelerator)
    dtype = dtype_of(settings.executor.dtype)
    threads = config.optimizer.threads or num_cores()
    torch.set_num_threads(threads)
    scratch = scratch_folder(config)
    make_scratch(scratch)
    name = device_name(accelerator)
    return HardwareProfile(
        accelerator=accelerator,
        device=name if is_gpu(accelerator) else f"{name} (link: host copies)",
        gpu_memory_bytes=memory.gpu_memory_bytes(device),
        gpu_cap_bytes=gpu_cap_bytes(config, accelerator, device),
        host_memory_bytes=memory.host_available_bytes(),
        disk_free_bytes=memory.disk_free_bytes(scratch),
        link=measure_link(device, _COPY_BYTES[device.type]),
        disk=measure_disk(scratch),
        optimizer_parameters_per_s=measure_optimizer(
            config.optimizer, dtype, _OPTIMIZER_PARAMETERS[device.type]
        ),
        threads=threads,
        matmul_flops_per_s=measure_matmul(device, dtype),
        provenance=collect(accelerator),
    )
