"""Typed JSON files that stages hand to each other: read, written, hashed.

Every contract is frozen and refuses unknown keys. Files are written to a temporary
name and renamed, so an interrupted run leaves no half-written JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lazytrain.errors import InvalidInput


class Contract(BaseModel):
    """Base of every file format: frozen, no unknown keys, NaN and inf refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)


def canonical_json(model: BaseModel, exclude: Any = None) -> str:
    """Return the byte-stable JSON of a model: sorted keys, no spaces."""
    data = model.model_dump(mode="json", exclude=exclude)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_text(text: str) -> str:
    """Return the hex sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path, field: str) -> None:
    """Make a folder to write into, and those above it, if it is not there.

    Args:
        folder: The folder.
        field: What to call it in an error.

    Raises:
        InvalidInput: If it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidInput(field, str(folder), "is no folder; give another") from error
    except (FileNotFoundError, PermissionError) as error:
        remedy = f"cannot be made ({error.strerror}); give another"
        raise InvalidInput(field, str(folder), remedy) from error
    if not os.access(folder, os.W_OK):
        raise InvalidInput(field, str(folder), "cannot be written; give another")


def read(kind: type[M], path: Path) -> M:
    """Read and validate a JSON file.

    Raises:
        InvalidInput: If the file is missing, is no JSON, or breaks the contract;
            the message names the file, the field and the value.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput("path", str(path), "the file does not exist") from error
    except IsADirectoryError as error:
        raise InvalidInput("path", str(path), "is a folder, not a file") from error
    except (PermissionError, NotADirectoryError) as error:
        why = f"cannot be read: {error.strerror}"
        raise InvalidInput("path", str(path), why) from error
    except ValidationError as error:
        raise first_problem(error, path, kind.__name__) from error


def first_problem(error: ValidationError, source: Path, whole: str) -> InvalidInput:
    """Turn a validation error into one message that names field, value and remedy.

    An unknown key comes before a missing one: it is often that key, misspelt.

    Args:
        error: What pydantic found.
        source: The file that was read.
        whole: What to call the file's content if no single field is at fault.
    """
    found = error.errors()
    unknown = (item for item in found if item["type"] == "extra_forbidden")
    first = next(unknown, found[0])
    field = ".".join(str(part) for part in first["loc"]) or whole
    value = None if first["type"] == "missing" else first.get("input")
    return InvalidInput(field, value, f"{first['msg']} (in {source})")


def write_text(text: str, path: Path) -> None:
    """Write a text atomically: temporary file beside it, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a full disk names no file by itself
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write(model: BaseModel, path: Path) -> None:
    """Write a contract as indented JSON, atomically."""
    write_text(model.model_dump_json(indent=1) + "\n", path)


def write_lines(models: Iterable[BaseModel], path: Path) -> None:
    """Write contracts as JSON lines, atomically."""
    write_text("".join(model.model_dump_json() + "\n" for model in models), path)


def read_lines(kind: type[M], path: Path) -> list[M]:
    """Read a file of JSON lines.

    Raises:
        InvalidInput: If the file is missing or a line breaks the contract.
    """
    try:
        # Only \n ends a line: texts may hold other separators that Unicode knows.
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise InvalidInput("path", str(path), "the file does not exist") from error
    try:
        return [kind.model_validate_json(line) for line in lines if line]
    except ValidationError as error:
        raise first_problem(error, path, kind.__name__) from error


class Provenance(Contract):
    """Where a number comes from: code, versions, machine, command."""

    commit: str
    dirty: bool
    command: str
    started: str
    hostname_sha256: str
    device: str
    cpu: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]
    made_from: dict[str, str] = Field(default_factory=dict)


class Side(Contract):
    """One side of a split: its row ids and the sha256 over its rows."""

    row_ids: tuple[int, ...]
    sha256: str


class SplitManifest(Contract):
    """A 70/30 split of a data set (``lazytrain data split``)."""

    source: str
    mode: Literal["grouped", "paper", "given"] = Field(
        description="`given`: the test rows came as a data set of their own"
    )
    seed: int
    train_fraction: float
    num_rows: int
    skipped: dict[str, int] = Field(description="rows left out, by reason")
    train: Side
    test: Side
    shared_questions: int = Field(description="test rows whose original is in train")


class LeakRecord(Contract):
    """How many test rows have their original question in train, by kind of split.

    The paper draws rows at random (``paper``); ``grouped`` keeps questions together.
    Each pair counts shared test rows and all test rows.
    """

    source: str
    num_rows: int
    num_questions: int
    train_fraction: float
    seed: int
    paper: tuple[int, int]
    grouped: tuple[int, int]


class LinkRates(Contract):
    """Measured rates in bytes per second."""

    h2d: float
    d2h: float
    h2d_together: float
    d2h_together: float


class DiskRates(Contract):
    """O_DIRECT rates in bytes per second at the given queue depth."""

    write: float
    read: float
    depth: int
    direct: bool


class HardwareProfile(Contract):
    """What the machine is and how fast it moves bytes; measured, never typed in."""

    accelerator: str
    device: str
    gpu_memory_bytes: int
    gpu_cap_bytes: int
    host_memory_bytes: int
    disk_free_bytes: int
    link: LinkRates
    disk: DiskRates
    optimizer_parameters_per_s: dict[str, float] = Field(
        description="CPU update rate by state format"
    )
    threads: int
    matmul_flops_per_s: float
    provenance: Provenance


class SaveLevel(Contract):
    """One way to keep a layer's forward: bytes kept and what backward then costs.

    ``backward_s`` includes whatever has to be recomputed. Values are for the
    profiled number of tokens.
    """

    name: str
    kept_bytes: int
    forward_s: float
    backward_s: float


class LayerCost(Contract):
    """Measured cost of one layer type for ``tokens`` tokens."""

    layer_type: str
    num_parameters: int
    weight_bytes: int
    boundary_bytes: int
    forward_s: float
    backward_s: float
    workspace_bytes: int
    levels: tuple[SaveLevel, ...]


class LayerProfile(Contract):
    """Costs of every layer type of one model on one machine."""

    accelerator: str
    scale: str
    model: str
    dtype: Literal["float32", "bfloat16"]
    body: Literal["eager", "compile", "liger"]
    tokens: int
    seq_len: int
    layer_types: tuple[str, ...]
    layers: tuple[LayerCost, ...]
    embedding_parameters: int
    head_parameters: int
    tied: bool
    hidden_size: int
    vocab_size: int
    loss_s: float
    embedding_s: float
    provenance: Provenance


class StepRecord(Contract):
    """One line of ``steps.jsonl``."""

    step: int
    loss: float
    grad_norm: float | None
    learning_rate: float
    step_s: float
    real_tokens: int
    padded_tokens: int
    supervised_tokens: int
    skipped: bool = False
    eval_loss: float | None = None
    breakdown_s: dict[str, float] = Field(default_factory=dict)


class WindowCheck(Contract):
    """One compute window: what the plan expects and what the last step took."""

    predicted_s: float | None
    measured_s: float | None


class PlanVsMeasured(Contract):
    """``plan_vs_measured.json``: a plan's prediction beside the run it led to."""

    plan_sha256: str
    predicted_step_s: float | None
    measured_step_s: float | None
    predicted_exposed_s: dict[str, float]
    measured_exposed_s: dict[str, float]
    predicted_peak_bytes: dict[str, int]
    measured_gpu_peak_bytes: int
    measured_host_peak_bytes: int
    windows: dict[str, WindowCheck]
    complete: Literal[True] = True


class RunRecord(Contract):
    """The result of one row of the run sheet. OOM is a result, not a failure."""

    system: str
    scale: str
    model: str
    stands_for: str
    accelerator: str
    batch: int
    seq_len: int
    purpose: Literal["throughput", "quality"]
    device: str
    cap_bytes: int | None = None
    host_cap_bytes: int | None = Field(
        default=None, description="host memory that the run was allowed, if configured"
    )
    status: Literal["ok", "oom", "host_oom", "diverged", "not_run"]
    reason: str | None = None
    requested_bytes: int | None = None
    num_parameters: int = 0
    num_steps: int = 0
    warmup_steps: int = 0
    tokens_per_s: float | None = None
    padded_tokens_per_s: float | None = None
    tflops: float | None = None
    step_s: float | None = None
    compile_s: float | None = None
    gpu_peak_bytes: int | None = None
    host_peak_bytes: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    eval_loss: float | None = None
    skipped_steps: int = 0
    master: str = ""
    optimizer_state: str = ""
    kernel: str = ""
    nvme: dict[str, str | int | bool] = Field(
        default_factory=dict,
        description="backend, direct, verify and the like; empty without a tier",
    )
    exposed_s: dict[str, float] = Field(
        default_factory=dict,
        description="mean seconds that compute stood still, by cause",
    )
    breakdown_s: dict[str, float] = Field(
        default_factory=dict, description="mean seconds of a step by cause"
    )
    seeds: dict[str, int] = Field(default_factory=dict)
    plan_sha256: str | None = None
    solve_status: str | None = None
    solve_gap: float | None = None
    provenance: Provenance
    complete: Literal[True] = True
