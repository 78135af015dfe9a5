"""The pipeline's stages of one run as commands, with the file that each leaves.

The same commands, options and places as the workflow's rules, below one folder, for a
machine that has no Snakemake. A stage whose file is there is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lazytrain import systems
from lazytrain.config import PipelineConfig, RunRow, load_runs
from lazytrain.errors import InvalidInput
from lazytrain.profile.accelerator import is_gpu, machine_of
from lazytrain.profile.same_layers import is_same_device, way_for, way_of
from lazytrain.records import HardwareProfile, LayerProfile, read

log = logging.getLogger(__name__)
P = TypeVar("P", HardwareProfile, LayerProfile)


@dataclass(frozen=True)
class Stage:
    """One command of the pipeline: its words after ``lazytrain``, and what it makes."""

    name: str
    words: tuple[str, ...]
    output: Path

    @property
    def is_done(self) -> bool:
        """Whether the file is there; every command renames it into place."""
        return self.output.is_file()


@dataclass(frozen=True)
class Folder:
    """Where the files of all runs lie, and what the commands read besides."""

    results: Path
    config: Path
    settings: PipelineConfig

    @property
    def split(self) -> Path:
        """The manifest of the split."""
        return self.results / "data" / "split.json"

    @property
    def rows(self) -> Path:
        """The rows of the split."""
        return self.results / "data" / "rows.jsonl"

    def hardware(self, accelerator: str) -> Path:
        """The machine's profile."""
        return self.results / "profile" / accelerator / "hardware.json"

    def layers(self, accelerator: str, scale: str) -> Path:
        """A model's profile."""
        return self.results / "profile" / accelerator / scale / "layers.json"

    def of_run(self, kind: str, row: RunRow) -> Path:
        """A run's own file of a kind: instances, schedules, checks."""
        place = self.results / kind / row.accelerator / row.scale
        return place / f"{row.system}.json"

    def log(self, stage: Stage) -> Path:
        """The log of a stage."""
        place = stage.output.relative_to(self.results)
        return (self.results / "logs" / place).with_suffix(".log")

    def run(self, row: RunRow) -> Path:
        """The folder that a run leaves its record in."""
        return self.results / "runs" / row.accelerator / row.scale / row.system


def split_stage(folder: Folder) -> Stage:
    """Return the stage that divides the data."""
    words = ("data", "split", *_config(folder), "--out", str(folder.split))
    return Stage("split", (*words, "--rows", str(folder.rows)), folder.split)


def operator_stages(folder: Folder, rows: Sequence[RunRow]) -> list[Stage]:
    """Return the stage that builds the operators of rival rows, if any needs one.

    On a CPU only DeepSpeed's own rows do.
    """
    families = {systems.BY_NAME[row.system].family for row in rows}
    has_gpu = any(is_gpu(row.accelerator) for row in rows)
    if not ("deepspeed" in families or (has_gpu and "megatrain" in families)):
        return []
    out = folder.results / "operators.json"
    nvme = ("--nvme",) if any(row.system == "zero-infinity" for row in rows) else ()
    return [Stage("operators", ("operators", *nvme, "--out", str(out)), out)]


def profile_stages(folder: Folder, row: RunRow) -> list[Stage]:
    """Return the stages that measure a row's machine and model.

    A profile of the same machine under another cap is used again, of layers where
    they ran as they would here.
    """
    shared = (*_config(folder), "--accelerator", row.accelerator)
    hardware = folder.hardware(row.accelerator)
    layers = folder.layers(row.accelerator, row.scale)
    machine = () if hardware.is_file() else _known_machine(folder, row)
    model = () if layers.is_file() else _known_layers(folder, row)
    of_model = (*shared, "--scale", row.scale, *model, "--out", str(layers))
    return [
        Stage(
            "profile hardware",
            ("profile", "hardware", *shared, *machine, "--out", str(hardware)),
            hardware,
        ),
        Stage("profile layers", ("profile", "layers", *of_model), layers),
    ]


def plan_stages(folder: Folder, row: RunRow) -> list[Stage]:
    """Return the stages from profiles to a checked plan; none for a row without one."""
    if not systems.is_planned(row.system):
        return []
    instance, plan, report = (
        folder.of_run(kind, row) for kind in ("instances", "schedules", "checks")
    )
    solver = folder.settings.solver
    return [
        Stage(
            "instance",
            (
                *("instance", *_config(folder), *_row(row)),
                *("--hardware", str(folder.hardware(row.accelerator))),
                *("--layers", str(folder.layers(row.accelerator, row.scale))),
                *("--allow-none", "--out", str(instance)),
            ),
            instance,
        ),
        Stage(
            "solve",
            (
                *("solve", str(instance), "--out", str(plan)),
                *("--time-limit-s", f"{solver.time_limit_s:g}"),
                *("--gap", f"{solver.gap:g}", "--seed", str(solver.seed)),
                "--allow-none",
            ),
            plan,
        ),
        Stage(
            "check",
            ("check", str(plan), str(instance), "--out", str(report)),
            report,
        ),
    ]


def run_stage(folder: Folder, row: RunRow) -> Stage:
    """Return the stage that measures a row's throughput."""
    out = folder.run(row)
    plan: tuple[str, ...] = ()
    if systems.is_planned(row.system):
        plan = (
            *("--plan", str(folder.of_run("schedules", row))),
            *("--instance", str(folder.of_run("instances", row))),
        )
    words = (
        *("run", *_config(folder), *_row(row), "--purpose", "throughput"),
        *("--split", str(folder.split), "--rows", str(folder.rows)),
        *(*plan, "--out", str(out)),
    )
    return Stage("run", words, out / "record.json")


def _config(folder: Folder) -> tuple[str, str]:
    return ("--config", str(folder.config))


def _row(row: RunRow) -> tuple[str, ...]:
    return (
        *("--accelerator", row.accelerator),
        *("--scale", row.scale, "--system", row.system),
    )


def _known_machine(folder: Folder, row: RunRow) -> tuple[str, ...]:
    """Return the option that names a profile of the same machine, if there is one."""
    here = machine_of(row.accelerator)
    found = (
        path
        for path, measured in _profiles(HardwareProfile, folder, "*/hardware.json")
        if machine_of(measured.accelerator) == here
    )
    return _from(next(found, None))


def _known_layers(folder: Folder, row: RunRow) -> tuple[str, ...]:
    """Return the option that names a profile of these layers, run the same way."""
    rows = load_runs(Path(folder.settings.runs))
    wanted = way_for(rows, row.accelerator, row.scale, folder.settings)
    found = (
        path
        for path, measured in _profiles(
            LayerProfile, folder, f"*/{row.scale}/layers.json"
        )
        if is_same_device(measured, row.accelerator) and way_of(measured) == wanted
    )
    return _from(next(found, None))


def _profiles(kind: type[P], folder: Folder, places: str) -> Iterator[tuple[Path, P]]:
    """Yield the profiles of a kind that can be read.

    One that cannot be is none: what it might have said is measured anew.
    """
    for path in sorted((folder.results / "profile").glob(places)):
        try:
            yield path, read(kind, path)
        except InvalidInput as error:
            log.warning("not used again: %s", error)


def _from(profile: Path | None) -> tuple[str, ...]:
    return () if profile is None else ("--from", str(profile))
