"""Find and remove what dead runs left behind, and nothing else.

A directory goes only if every one of these holds: its name is ours, it is a real
directory of this user directly below the root, it holds only files that we make, its
lock is free, and the process that its owner file names is gone (pid and start time).
Removal unlinks those files by name through open descriptors: no path is followed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lazytrain.errors import InvalidInput
from lazytrain.tiers import run_folder
from lazytrain.tiers.run_folder import (
    DATA_FILE,
    LOCK_FILE,
    NEW_PREFIX,
    OWNER_FILE,
    PREFIX,
    Owner,
)

_OURS: Final = frozenset({LOCK_FILE, OWNER_FILE, DATA_FILE})
_UNFINISHED_S: Final = 60.0  # a directory being made has no owner file yet
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Action = Literal["removed", "would remove", "kept"]


@dataclass(frozen=True)
class Verdict:
    """What became of one directory, and why."""

    name: str
    action: Action
    reason: str
    size_bytes: int


def parse_age(text: str) -> float:
    """Parse ``90s``, ``30m``, ``24h`` or ``7d`` into seconds.

    Raises:
        InvalidInput: If the number or the unit is missing.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smhd])\s*", text)
    if match is None:
        raise InvalidInput("older-than", text, "write a number and s, m, h or d: 24h")
    return float(match[1]) * _UNITS[match[2]]


def sweep(root: Path, older_than_s: float, *, dry_run: bool = False) -> list[Verdict]:
    """Remove the directories of dead runs directly below ``root``.

    Args:
        root: Scratch folder of runs.
        older_than_s: Keep what was written to within so many seconds.
        dry_run: Say what would go, and touch nothing.

    Returns:
        One verdict for every entry whose name is ours.

    Raises:
        InvalidInput: If the root is not a folder that can be read.
    """
    try:
        descriptor = os.open(root.resolve(), _DIRECTORY)
    except OSError as error:
        raise InvalidInput("root", str(root), f"{error.strerror}") from error
    try:
        names = [
            name
            for name in sorted(os.listdir(descriptor))  # noqa: PTH208 - by descriptor
            if name.startswith((PREFIX, NEW_PREFIX))
        ]
        return [_judge(descriptor, name, older_than_s, dry_run) for name in names]
    finally:
        os.close(descriptor)


def _judge(root: int, name: str, older_than_s: float, dry_run: bool) -> Verdict:
    """Judge one entry and remove it if all holds."""
    try:
        folder = os.open(name, _DIRECTORY, dir_fd=root)
    except OSError as error:
        is_other = error.errno in (errno.ENOTDIR, errno.ELOOP)
        reason = "is a link or a file" if is_other else str(error.strerror)
        return Verdict(name, "kept", reason, 0)
    try:
        size = _size_bytes(folder)
        keeps = _keeps(folder, name, older_than_s)
        if keeps is None:
            with _locked(folder) as is_free:
                keeps = _owner_lives(folder, name) if is_free else "its lock is held"
                if keeps is None and not dry_run:
                    _remove(root, folder, name)
    finally:
        os.close(folder)
    if keeps is not None:
        return Verdict(name, "kept", keeps, size)
    action: Action = "would remove" if dry_run else "removed"
    return Verdict(name, action, "its owner is dead", size)


def _size_bytes(folder: int) -> int:
    """Return the disk space of the entries of a directory."""
    entries = os.listdir(folder)
    stats = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in entries]
    return sum(stat.st_blocks * 512 for stat in stats)


def _keeps(folder: int, name: str, older_than_s: float) -> str | None:
    """Return why a directory stays, looking only at names, user and times."""
    if os.fstat(folder).st_uid != os.geteuid():
        return "belongs to another user"
    entries = os.listdir(folder)
    foreign = sorted(set(entries) - _OURS)
    if foreign:
        return f"holds {foreign[0]}, which no run makes"
    newest = os.fstat(folder).st_mtime
    for entry in entries:
        stat = os.stat(entry, dir_fd=folder, follow_symlinks=False)
        newest = max(newest, stat.st_mtime)
    least = max(older_than_s, _UNFINISHED_S if name.startswith(NEW_PREFIX) else 0.0)
    age = time.time() - newest
    return f"was used {age:.0f} s ago" if age < least else None


@contextmanager
def _locked(folder: int) -> Iterator[bool]:
    """Hold the directory's lock, if there is one and it is free."""
    try:
        descriptor = run_folder.take_lock(folder, create=False)
    except FileNotFoundError:
        yield True  # killed before it could lock
        return
    except OSError:
        yield False
        return
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _read_owner(folder: int) -> Owner | None:
    """Return the owner record of a directory, or None if it cannot be read."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(OWNER_FILE, flags, dir_fd=folder)) as file:
            return Owner(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _owner_lives(folder: int, name: str) -> str | None:
    """Return why the owner may still be alive, or None if it is certainly dead."""
    owner = _read_owner(folder)
    if owner is None:
        # Killed before the rename: the free lock and its age are proof enough.
        return None if name.startswith(NEW_PREFIX) else "has no readable owner file"
    if owner.boot_id == run_folder.boot_id():
        if run_folder.start_ticks(owner.pid) == owner.start_ticks:
            return f"its process {owner.pid} still runs"
        return None
    if owner.host != socket.gethostname():
        return f"was made on host {owner.host}: remove it there, or by hand"
    return None


def _remove(root: int, folder: int, name: str) -> None:
    """Unlink our files, the lock last, then the empty directory."""
    for entry in (DATA_FILE, OWNER_FILE, LOCK_FILE):
        try:
            os.unlink(entry, dir_fd=folder)
        except FileNotFoundError:
            continue
    os.rmdir(name, dir_fd=root)
