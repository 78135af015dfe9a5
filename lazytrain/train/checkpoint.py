"""Checkpoints that are whole or not there: written aside, hashed, renamed, completed.

A checkpoint is the folder ``step-000123``. It is written as ``step-000123.partial``;
its manifest holds the sha256 of every file; the file ``complete``, which comes last
and holds the manifest's own sha256, makes it one. Whatever a kill, a full disk or a
flipped bit leaves behind fails one of these checks and is skipped, with the reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError
from torch import Tensor

from lazytrain.errors import InvalidInput
from lazytrain.models.load import SafetensorsFiles
from lazytrain.records import Contract, StepRecord, sha256_file, write, write_text
from lazytrain.train.tensor_files import (
    SHARD_BYTES,
    WRITERS,
    AnyTensor,
    FileSum,
    write_shards,
)

log = logging.getLogger(__name__)
MANIFEST: Final = "manifest.json"
COMPLETE: Final = "complete"
STATE: Final = "state.json"
STEPS: Final = "steps.jsonl"
HUGGING_FACE: Final = "hf"
_PARTIAL: Final = ".partial"
_NAME: Final = re.compile(r"step-(\d{6,})")


class StreamPosition(Contract):
    """Where the stream of batches goes on."""

    epoch: int
    taken: int
    held: tuple[int, ...] = ()


class RandomState(Contract):
    """State of every random number generator a step may draw from, as text."""

    torch: str
    cuda: tuple[str, ...] = ()
    python: str
    numpy: str


class Course(Contract):
    """Settings that decide which rows come in which batch, beside seed and rows.

    ``template`` is the name of the chat template, or the start of its hash.
    """

    purpose: str
    batch: int
    seq_len: int
    pack: bool
    group_by_length: bool
    allow_truncation: bool
    template: str


class TrainingState(Contract):
    """What a checkpoint says beside its tensors.

    ``step`` counts batches taken, ``applied_steps`` updates: a step without a label or
    with a non-finite norm takes a batch and updates nothing. The learning rate of the
    next step follows from ``step`` and the settings, whose hash is ``config_sha256``.
    ``course`` is None in checkpoints that are older than the field.
    """

    version: Literal[1] = 1
    step: int
    applied_steps: int
    num_steps: int
    learning_rate: float
    position: StreamPosition
    random: RandomState
    seed: int
    rows_sha256: str
    plan_sha256: str | None
    config_sha256: str
    planning_sha256: str
    num_parameters: int
    dtype: str
    master: str
    optimizer_state: str
    course: Course | None = None


class Manifest(Contract):
    """Every file of a checkpoint, and which one holds which tensor."""

    version: Literal[1] = 1
    files: dict[str, FileSum]
    weights: dict[str, str]
    optimizer: dict[str, str]


@dataclass(frozen=True)
class Content:
    """What goes into a checkpoint.

    Attributes:
        state: Numbers and positions.
        weights: Live host weights by Hugging Face name.
        optimizer: Optimizer state, live on the host or on a tier.
        steps: Records of all steps so far.
        documents: Further JSON files by name: the plan, the request.
        save_model: Writes configuration and tokenizer into a folder.
    """

    state: TrainingState
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, AnyTensor]
    steps: tuple[StepRecord, ...]
    documents: Mapping[str, str]
    save_model: Callable[[Path], None]


class Broken(Exception):
    """A folder that is no whole checkpoint; the message is the reason."""


def folder_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:06d}"


def save(
    root: Path, content: Content, keep_last: int, shard_bytes: int = SHARD_BYTES
) -> Path:
    """Write a checkpoint and remove those before the last ``keep_last``.

    Nothing older is touched before the new one is complete.

    Raises:
        OSError: If the disk is full or cannot be written; nothing partial stays.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / folder_name(content.state.step)
    partial = final.with_name(final.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        digest = _fill(partial, content, shard_bytes)
        if final.exists():
            # Only one that could not be resumed from is ever written again.
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(root)
    write_text(digest + "\n", final / COMPLETE)
    _sync_folder(final)
    prune(root, keep_last, content.state.step)
    return final


def _fill(folder: Path, content: Content, shard_bytes: int) -> str:
    """Write every file but ``complete``; return the manifest's sha256."""
    sums, weights = write_shards(folder, "model", content.weights.items(), shard_bytes)
    more, optimizer = write_shards(
        folder, "optimizer", content.optimizer.items(), shard_bytes
    )
    write(content.state, folder / STATE)
    lines = "".join(step.model_dump_json() + "\n" for step in content.steps)
    write_text(lines, folder / STEPS)
    for name, text in content.documents.items():
        write_text(text, folder / name)
    content.save_model(folder / HUGGING_FACE)
    sums |= more
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in sums:
            _sync_file(path)
            size = path.stat().st_size
            sums[name] = FileSum(size_bytes=size, sha256=sha256_file(path))
    manifest = Manifest(files=sums, weights=weights, optimizer=optimizer)
    write(manifest, folder / MANIFEST)
    for inner in (folder / HUGGING_FACE, folder):
        if inner.is_dir():
            _sync_folder(inner)
    return sha256_file(folder / MANIFEST)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a folder's entries survive a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Checkpoint:
    """A checkpoint on disk whose manifest is intact.

    Args:
        folder: The checkpoint's folder.

    Raises:
        Broken: If it was never completed, or manifest, sizes or state are wrong.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = folder / MANIFEST
        try:
            promised = (folder / COMPLETE).read_text(encoding="utf-8").strip()
            found = manifest.read_bytes()
        except (OSError, UnicodeDecodeError) as error:
            raise Broken(f"not completed: {error}") from error
        if hashlib.sha256(found).hexdigest() != promised:
            raise Broken(f"{MANIFEST} has another sha256 than {COMPLETE} says")
        try:
            self._manifest = Manifest.model_validate_json(found)
        except ValidationError as error:
            raise Broken(f"{MANIFEST}: {error.errors()[0]['msg']}") from error
        for name, expected in self._manifest.files.items():
            self._check_size(name, expected)

    def _check_size(self, name: str, expected: FileSum) -> None:
        path = self.folder / name
        if not path.is_file():
            raise Broken(f"{name} is missing")
        size = path.stat().st_size
        if size != expected.size_bytes:
            raise Broken(f"{name} has {size} bytes, {expected.size_bytes} were written")

    def verify(self) -> None:
        """Read every file and compare its sha256.

        Raises:
            Broken: Naming the first file that is not as written.
        """
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="verify") as pool:
            paths = [self.folder / name for name in self._manifest.files]
            found = pool.map(sha256_file, paths)
            pairs = zip(self._manifest.files.items(), found, strict=True)
            for (name, expected), sha256 in pairs:
                if sha256 != expected.sha256:
                    raise Broken(f"{name} has another sha256 than was written")

    @cached_property
    def state(self) -> TrainingState:
        """Numbers and positions.

        Raises:
            Broken: If they are of another version.
        """
        try:
            return TrainingState.model_validate_json((self.folder / STATE).read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            raise Broken(f"{STATE}: {first['loc']}: {first['msg']}") from error

    @cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        """Records of all steps up to this one."""
        lines = (self.folder / STEPS).read_text(encoding="utf-8").splitlines()
        return tuple(StepRecord.model_validate_json(line) for line in lines)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights by Hugging Face name, read when asked for."""
        return SafetensorsFiles(self.folder, self._manifest.weights)

    @property
    def optimizer(self) -> Mapping[str, Tensor]:
        """Optimizer state, read when asked for."""
        return SafetensorsFiles(self.folder, self._manifest.optimizer)

    @property
    def model_folder(self) -> Path:
        """Folder with the Hugging Face configuration and the tokenizer."""
        return self.folder / HUGGING_FACE

    def document(self, name: str) -> str | None:
        """Return a further JSON file of the checkpoint, or None."""
        path = self.folder / name
        return (
            path.read_text(encoding="utf-8") if name in self._manifest.files else None
        )


def open_whole(folder: Path) -> Checkpoint:
    """Open a checkpoint and verify every byte.

    Raises:
        Broken: With the reason.
    """
    found = Checkpoint(folder)
    found.verify()
    _ = found.state, found.steps
    return found


def folders(root: Path) -> list[Path]:
    """Return all step folders below a run's checkpoints, newest first."""
    if not root.is_dir():
        return []
    found = [
        path for path in root.iterdir() if path.is_dir() and _NAME.match(path.name)
    ]
    return sorted(found, key=lambda path: (step_of(path), path.name), reverse=True)


def newest(root: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Return the newest whole checkpoint, and why newer folders were skipped."""
    skipped: dict[Path, str] = {}
    for path in folders(root):
        try:
            if path.name.endswith(_PARTIAL):
                raise Broken("writing it was interrupted")
            return open_whole(path), skipped
        except Broken as error:
            skipped[path] = str(error)
            log.warning("skipping checkpoint %s: %s", path, error)
    return None, skipped


def prune(root: Path, keep_last: int, step: int, *, spare_later: bool = False) -> None:
    """Remove checkpoints that a whole one of ``step`` makes useless.

    These are completed ones before the last ``keep_last``, partial ones, and all of
    later steps: the run went on from before them, so they are broken or of another
    course. A run that has only just resumed spares those: it has nothing newer yet.

    Raises:
        InvalidInput: If none would be kept.
    """
    if keep_last < 1:
        raise InvalidInput("keep_checkpoints", keep_last, "keep at least one")
    kept = 0
    for path in folders(root):
        is_whole = (path / COMPLETE).is_file() and not path.name.endswith(_PARTIAL)
        if is_whole and step_of(path) <= step and kept < keep_last:
            kept += 1
            continue
        if step_of(path) > step:
            if spare_later:
                continue
            log.warning("removing %s: the run went on from before it", path)
        # `complete` goes first: what a kill leaves of the rest is then no one's.
        (path / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def step_of(folder: Path) -> int:
    """Return the step in a checkpoint folder's name."""
    match = _NAME.match(folder.name)
    assert match is not None, folder
    return int(match[1])
