"""A plan that a user gives: held against its instance, and that against the row.

Nothing runs on a plan that nobody could check. The instance is named, derived from
profiles, or found beside the plan where the commands leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.profile.accelerator import is_gpu
from lazytrain.profile.hardware import device_for, gpu_cap_bytes, settings_for
from lazytrain.records import HardwareProfile, LayerProfile, read, sha256_file
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.no_plan import NoPlan, read_unless_none
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.row_check import refuse_other_row


class Origin(NamedTuple):
    """Where a plan's instance is to come from; nothing: from beside the plan."""

    instance: Path | None = None
    hardware: Path | None = None
    layers: Path | None = None


def check_given(
    path: Path, row: RunRow, config: PipelineConfig, origin: Origin | None = None
) -> None:
    """Refuse a plan that breaks its instance's rules, or is another row's.

    A note that no schedule fits passes: the run records it as a limit.

    Raises:
        InvalidInput: If there is no instance to check it against.
        PlanViolation: With every rule that it breaks.
        PlanMismatch: With every field that is not the row's.
    """
    plan = read_unless_none(Plan, path)
    if isinstance(plan, NoPlan):
        return
    instance = _instance_of(plan, path, row, config, origin or Origin())
    check(plan, instance).raise_if_violated()
    refuse_other_row(instance, row, config, _device_bytes(row, config))


def beside(plan: Path) -> Iterator[Path]:
    """Yield where the commands leave a plan's instance, likeliest first."""
    if "plan" in plan.name:
        yield plan.with_name(plan.name.replace("plan", "instance"))
    yield plan.with_name("instance.json")
    folders = plan.resolve().parts
    for i, name in enumerate(folders):
        if name != "schedules":
            continue
        rest = folders[i + 1 :]
        yield Path(*folders[:i], "instances", *rest)
        if rest[0] == "solved":
            yield Path(*folders[:i], "results", "instances", *rest[1:])


def _instance_of(
    plan: Plan, path: Path, row: RunRow, config: PipelineConfig, origin: Origin
) -> Instance:
    """Return the instance that is named, derived, or beside the plan."""
    if origin.instance is not None:
        return read(Instance, origin.instance)
    if origin.hardware is not None and origin.layers is not None:
        return _derived(plan, origin.hardware, origin.layers, row, config)
    for other in beside(path):
        if other != path and other.is_file():
            return read(Instance, other)
    remedy = (
        f"{path} cannot be checked without the instance that it was solved from: keep"
        f" it beside the plan as {next(beside(path)).name}, or give `lazytrain run`"
        " --instance, or --hardware and --layers to derive it"
    )
    raise InvalidInput("instance", None, remedy)


def _derived(
    plan: Plan, hardware: Path, layers: Path, row: RunRow, config: PipelineConfig
) -> Instance:
    """Derive the row's instance from profiles, in the plan's order; nothing is solved.

    One that a run made for itself does not name the files that it was made from.
    """
    profiles = read(HardwareProfile, hardware), read(LayerProfile, layers)
    instance = derive_instance(*profiles, row, _in_its_order(plan, row, config))
    made_from = {"hardware": sha256_file(hardware), "layers": sha256_file(layers)}
    named = instance.model_copy(update={"made_from": made_from})
    return instance if instance.sha256 == plan.instance_sha256 else named


def _in_its_order(plan: Plan, row: RunRow, config: PipelineConfig) -> PipelineConfig:
    """Return settings in the order and waves of a plan, where they are a choice."""
    settings = settings_for(config, row.accelerator)
    if settings.executor.order == "layer-major":
        return config
    group = plan.groups[0]
    tokens = group.micro_batch * plan.seq_len
    changes = {"order": group.order, "micro_batch_tokens": tokens}
    executor = settings.executor.model_copy(update=changes)
    changed = settings.model_copy(update={"executor": executor})
    accelerators = config.accelerators | {row.accelerator: changed}
    return config.model_copy(update={"accelerators": accelerators})


def _device_bytes(row: RunRow, config: PipelineConfig) -> int | None:
    """Return the device memory that the run may take; None where there is no device."""
    if not is_gpu(row.accelerator) or not torch.cuda.is_available():
        return None
    return gpu_cap_bytes(config, row.accelerator, device_for(row.accelerator))
