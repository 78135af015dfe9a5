"""Whether a planning problem is the one that a row poses under the settings of now.

The checker says whether a plan keeps to its instance. A plan of another batch, model,
system or budget keeps to its own just as well: here the instance is held against the
row. What only a measurement decides (seconds, and budgets that are ``auto``) is the
instance's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import PlanMismatch
from lazytrain.schedule.baseline import ON_BASELINE, least_bytes
from lazytrain.schedule.derive import METHODS
from lazytrain.schedule.execution import asked, settings_of
from lazytrain.schedule.host_room import OURS, host_room
from lazytrain.schedule.instance import Execution, Instance
from lazytrain.schedule.parts import ITEMSIZE
from lazytrain.units import format_bytes, parse_bytes

# Cards of one kind differ by a few MiB; another budget differs by more than this.
SAME_CARD: Final = 0.01
# What a machine decides of an execution, or a choice of waves; the rest is compared.
DECIDED: Final = {"reserve_bytes", "micro_batch", "gradient_drain", "state_on_nvme"}


class Difference(NamedTuple):
    """One field of an instance that is not the row's."""

    field: str
    given: object
    wanted: object


def refuse_other_row(
    instance: Instance, row: RunRow, config: PipelineConfig, cap_bytes: int | None
) -> None:
    """Refuse an instance that is not the row's.

    Args:
        instance: What a plan was made for.
        row: The run.
        config: Its settings.
        cap_bytes: Device memory of this machine for budgets that are ``auto``; None
            where there is none to compare with.

    Raises:
        PlanMismatch: Naming each field, both values and the remedy.
        InvalidInput: If a setting cannot be read.
    """
    found = [*differences(instance, row, config, cap_bytes)]
    if not found:
        return
    texts = (f"{d.field} = {d.given}, but the row asks for {d.wanted}" for d in found)
    name = f"{row.accelerator}/{row.scale}/{row.system}"
    raise PlanMismatch(
        f"the plan is not for {name}: {'; '.join(texts)}: make its own with"
        " `lazytrain instance` and `lazytrain solve`, or run the row that it is for"
    )


def differences(
    instance: Instance, row: RunRow, config: PipelineConfig, cap_bytes: int | None
) -> Iterator[Difference]:
    """Yield each field of an instance that is not what the row asks for."""
    run = instance.execution
    if run is None:
        yield Difference("execution", None, "one that was derived for a run")
        return
    settings = settings_of(config, row)
    if settings.executor.order == "auto":
        settings = settings.model_copy(
            update={
                "executor": settings.executor.model_copy(update={"order": run.order})
            }
        )
        accelerators = config.accelerators | {row.accelerator: settings}
        config = config.model_copy(update={"accelerators": accelerators})
    found = [
        *_problem(instance, row, config),
        *_execution(instance, run, row, config),
        *_placed(instance, run, row, config),
        *_device(instance, row, config, cap_bytes),
        *_host_and_disk(instance, run, row, config),
    ]
    yield from (one for one in found if one.given != one.wanted)


def _problem(
    instance: Instance, row: RunRow, config: PipelineConfig
) -> Iterator[Difference]:
    """Compare model, method and the size of a weight."""
    yield Difference("model", instance.model, row.model)
    yield Difference("method", instance.method, METHODS.get(row.system, "milp"))
    dtype = settings_of(config, row).executor.dtype
    sizes = {
        part.weight_bytes / part.num_parameters
        for part in instance.parts
        if part.kind == "embedding" and part.num_parameters
    }
    for size in sizes:
        yield Difference("bytes of a weight", size, ITEMSIZE[dtype])


def _execution(
    instance: Instance, run: Execution, row: RunRow, config: PipelineConfig
) -> Iterator[Difference]:
    """Compare how the step is run, but for what a machine decides."""
    executor = settings_of(config, row).executor
    wanted = asked(row, config, executor.dtype, executor.body)
    for name in type(run).model_fields.keys() - DECIDED:
        yield Difference(name, getattr(run, name), getattr(wanted, name))
    largest = wanted.micro_batch
    is_wave = run.order == "batch-major" and run.batch % run.micro_batch == 0
    if not (is_wave and run.micro_batch < largest):
        yield Difference("micro_batch", run.micro_batch, largest)


def _placed(
    instance: Instance, run: Execution, row: RunRow, config: PipelineConfig
) -> Iterator[Difference]:
    """Compare where gradients and optimizer state go, where that is said."""
    is_ours = row.system in OURS
    drain = settings_of(config, row).executor.gradient_drain if is_ours else "whole"
    if drain != "auto":
        yield Difference("gradient_drain", run.gradient_drain, drain)
    home = config.optimizer.state_home if is_ours else "cpu"
    names = tuple(part.name for part in instance.parts) if home == "nvme" else ()
    if home != "auto":
        yield Difference("state_on_nvme", run.state_on_nvme, names)


def _device(
    instance: Instance, row: RunRow, config: PipelineConfig, cap_bytes: int | None
) -> Iterator[Difference]:
    """Compare the cap on device memory."""
    text = settings_of(config, row).budgets.gpu_cap
    given = instance.fixed_bytes.gpu + instance.budget_bytes.gpu
    wanted = cap_bytes if text == "auto" else parse_bytes(text, "budgets.gpu_cap")
    if wanted is None:
        return
    if row.system in ON_BASELINE and instance.budget_bytes.gpu == least_bytes(instance):
        return  # the least that its step takes, whatever the cap
    slack = SAME_CARD * wanted if text == "auto" else 0
    if abs(given - wanted) > slack:
        yield _sizes("budgets.gpu_cap", given, wanted)


def _host_and_disk(
    instance: Instance, run: Execution, row: RunRow, config: PipelineConfig
) -> Iterator[Difference]:
    """Compare the budgets of host memory and disk that are written down."""
    texts = settings_of(config, row).budgets
    on_device = run.order == "batch-major" or row.system in ON_BASELINE
    for name in ("cpu", "nvme"):
        text = getattr(texts, f"{name}_activations")
        field = f"budgets.{name}_activations"
        if text != "auto" or on_device:
            wanted = 0 if on_device else parse_bytes(text, field)
            yield _sizes(field, getattr(instance.budget_bytes, name), wanted)
    if texts.host_capacity == "auto" or texts.cpu_activations != "auto" or on_device:
        return
    # Only a machine with a GPU keeps a reserve, and room for the process beside it.
    room = host_room(texts.host_capacity, 0, is_gpu=run.reserve_bytes > 0)
    fixed = instance.fixed_bytes.cpu
    given = fixed + instance.budget_bytes.cpu
    yield _sizes("budgets.host_capacity", given, max(room, fixed))


def _sizes(field: str, given_bytes: int, wanted_bytes: int) -> Difference:
    """Return two sizes for people, told apart even where they look alike."""
    given, wanted = format_bytes(given_bytes), format_bytes(wanted_bytes)
    if given == wanted and given_bytes != wanted_bytes:
        given, wanted = f"{given_bytes} B", f"{wanted_bytes} B"
    return Difference(field, given, wanted)
