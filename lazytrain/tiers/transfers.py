"""Transfers in pieces over a few threads, each started only when it may run.

No thread ever waits for another transfer: a transfer whose predecessors still run is
started by the last of them. So any order of completion is safe, and nothing deadlocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor


class Transfer:
    """One put or fetch: ``num_pieces`` calls of ``move(i)``, then ``finish(error)``.

    The future ends only after every started piece has ended, also when one failed:
    until then the buffer is in use.
    """

    def __init__(
        self,
        num_pieces: int,
        move: Callable[[int], None],
        finish: Callable[[BaseException | None], BaseException | None],
    ) -> None:
        self.future: Future[None] = Future()
        self.num_pieces = num_pieces
        self._move = move
        self._finish = finish
        self._lock = threading.Lock()
        self._left = max(num_pieces, 1)
        self._error: BaseException | None = None

    def run_piece(self, index: int) -> None:
        """Move one piece; skipped once another has failed."""
        try:
            if self._error is None and index < self.num_pieces:
                self._move(index)
        except BaseException as error:
            # Handed to whoever waits; a pool thread has nobody to raise to.
            self._error = self._error or error
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._end()

    def _end(self) -> None:
        """Let ``finish`` judge the result, then complete the future."""
        try:
            error = self._finish(self._error)
        except BaseException as failure:
            error = failure
        # The buffer may be large: let it go before waiters wake.
        del self._move, self._finish
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class TransferPool:
    """A few I/O threads and the order between transfers."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="lazytrain-io")
        self._open = 0
        self._idle = threading.Condition()

    def start_after(self, transfer: Transfer, before: Sequence[Future[None]]) -> None:
        """Start a transfer once all of ``before`` ended, well or not."""
        with self._idle:
            self._open += 1
        transfer.future.add_done_callback(self._one_ended)
        waiting = _CountDown(len(before) + 1, lambda: self._submit(transfer))
        for future in before:
            future.add_done_callback(waiting.step)
        waiting.step(None)

    def _submit(self, transfer: Transfer) -> None:
        """Queue every piece of a transfer."""
        for index in range(max(transfer.num_pieces, 1)):
            self._pool.submit(transfer.run_piece, index)

    def _one_ended(self, future: Future[None]) -> None:
        """Count a transfer's end."""
        del future
        with self._idle:
            self._open -= 1
            self._idle.notify_all()

    def close(self) -> None:
        """Wait for every transfer, then stop the threads."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)
        self._pool.shutdown()


class _CountDown:
    """Calls ``action`` at the last of ``count`` steps."""

    def __init__(self, count: int, action: Callable[[], None]) -> None:
        self._left = count
        self._action = action
        self._lock = threading.Lock()

    def step(self, future: Future[None] | None) -> None:
        """Count one predecessor."""
        del future
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._action()
