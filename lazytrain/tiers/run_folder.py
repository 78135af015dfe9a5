"""One directory per run: locked, owned, private, and gone when the run is gone.

The lock is the kernel's (``flock``): it falls when the process dies, however it dies.
The owner file says who it was, for ``lazytrain clean`` and for people.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from lazytrain.errors import InvalidInput

PREFIX: Final = "lazytrain-run-"
NEW_PREFIX: Final = ".new-lazytrain-run-"
OWNER_FILE: Final = "owner.json"
LOCK_FILE: Final = "lock"
DATA_FILE: Final = "tier.dat"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """The process that made a directory; pid and start time name it for one boot."""

    pid: int
    start_ticks: int
    boot_id: str
    host: str
    created_unix_s: float


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold spaces and brackets: fields are counted behind its last ")".
    return int(stat.rpartition(")")[2].split()[19])


def this_process() -> Owner:
    """Return the owner record of the running process."""
    pid = os.getpid()
    return Owner(
        pid, start_ticks(pid) or 0, boot_id(), socket.gethostname(), time.time()
    )


def take_lock(folder: int, *, create: bool = True) -> int | None:
    """Lock a directory's lock file without waiting; None if another holds it.

    Args:
        folder: Descriptor of the directory.
        create: Make the lock file if there is none; FileNotFoundError otherwise.

    Returns:
        The descriptor that holds the lock until it is closed.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(LOCK_FILE, flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _own(fresh: Path) -> int:
    """Lock a fresh directory and write its owner file; return the lock."""
    folder = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock = take_lock(folder)
        if lock is None:
            raise BlockingIOError(errno.EBUSY, "another process locked the new folder")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        owner = os.open(OWNER_FILE, flags, 0o600, dir_fd=folder)
        with os.fdopen(owner, "w", encoding="utf-8") as file:
            json.dump(asdict(this_process()), file)
        return lock
    finally:
        os.close(folder)


class RunFolder:
    """A fresh directory below ``root`` that belongs to this process alone.

    Args:
        root: Scratch directory on the disk to use; made if it is missing.

    Raises:
        InvalidInput: If nothing can be written there.
    """

    def __init__(self, root: Path) -> None:
        self._pid = os.getpid()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=root.resolve()))
            self._lock: int | None = _own(fresh)
            # Renamed last: a directory under its final name always has an owner.
            self.path = fresh.rename(fresh.with_name(fresh.name.removeprefix(".new-")))
        except OSError as error:
            remedy = f"{error.strerror}: name a writable folder on a local disk"
            raise InvalidInput("scratch", str(root), remedy) from error
        _register(self)

    def remove(self) -> None:
        """Delete the directory and give up the lock; harmless when repeated."""
        if os.getpid() != self._pid:
            return  # a forked child inherits the object, not the directory
        _OPEN.discard(self)
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


_OPEN: set[RunFolder] = set()


def _remove_all() -> None:
    """Remove every directory that this process still has."""
    for folder in list(_OPEN):
        folder.remove()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Clean up, then die of the signal as if no handler had been there."""
    del frame
    _remove_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _register(folder: RunFolder) -> None:
    """Arrange removal at exit and on the signals that would skip it.

    A handler of the user's is never replaced: theirs decides, and ``atexit`` follows if
    it ends the interpreter. Only the main thread may set handlers.
    """
    if not _OPEN:
        atexit.unregister(_remove_all)
        atexit.register(_remove_all)
    _OPEN.add(folder)
    if threading.current_thread() is not threading.main_thread():
        _LOG.info("tier opened outside the main thread: no clean-up on SIGTERM")
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _on_signal)
