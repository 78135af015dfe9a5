"""A discrete-event timeline: tasks on serial resources, ready when all before are done.

Each resource runs one task at a time and takes, among the ready ones, the one of the
lowest priority number, then the earliest added. Tasks are not interrupted; what must
yield to others is added in pieces.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Task:
    """One piece of work; ``start_s`` and ``end_s`` are set by the run."""

    name: str
    resource: str
    seconds: float
    after: tuple[int, ...]
    priority: int = 0
    step: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    ready_s: float = 0.0


@dataclass
class Timeline:
    """Tasks in the order of adding; dependencies are indices of earlier tasks."""

    tasks: list[Task] = field(default_factory=list)

    def add(
        self,
        name: str,
        resource: str,
        seconds: float,
        after: Iterable[int | None] = (),
        priority: int = 0,
        step: int = 0,
    ) -> int:
        """Add a task and return its index; ``None`` among ``after`` is ignored."""
        before = tuple(sorted({i for i in after if i is not None}))
        if any(i >= len(self.tasks) for i in before):
            raise ValueError(f"task {name} depends on a later one")
        self.tasks.append(Task(name, resource, seconds, before, priority, step))
        return len(self.tasks) - 1

    def run(self) -> None:
        """Set start and end of every task."""
        followers, waiting = self._followers()
        queues: dict[str, list[tuple[int, int]]] = defaultdict(list)
        busy: set[str] = set()
        running: list[tuple[float, int]] = []
        for i, count in enumerate(waiting):
            if count == 0:
                self._queue(queues, i, 0.0)
        self._launch(queues, busy, running, 0.0)
        while running:
            now = running[0][0]
            # All that ends now is handled first: a task that becomes ready at this
            # moment competes with those that are ready already.
            while running and running[0][0] == now:
                _, i = heapq.heappop(running)
                busy.discard(self.tasks[i].resource)
                for j in followers[i]:
                    waiting[j] -= 1
                    if waiting[j] == 0:
                        self._queue(queues, j, now)
            self._launch(queues, busy, running, now)

    def _followers(self) -> tuple[dict[int, list[int]], list[int]]:
        """Return who waits for each task, and for how many each waits."""
        followers: dict[int, list[int]] = defaultdict(list)
        for i, task in enumerate(self.tasks):
            for j in task.after:
                followers[j].append(i)
        return followers, [len(task.after) for task in self.tasks]

    def _queue(
        self, queues: dict[str, list[tuple[int, int]]], i: int, now: float
    ) -> None:
        """Mark a task as ready."""
        task = self.tasks[i]
        task.ready_s = now
        heapq.heappush(queues[task.resource], (task.priority, i))

    def _launch(
        self,
        queues: dict[str, list[tuple[int, int]]],
        busy: set[str],
        running: list[tuple[float, int]],
        now: float,
    ) -> None:
        """Start the best ready task of every idle resource."""
        for resource, queue in queues.items():
            if queue and resource not in busy:
                _, i = heapq.heappop(queue)
                task = self.tasks[i]
                task.start_s, task.end_s = now, now + task.seconds
                busy.add(resource)
                heapq.heappush(running, (task.end_s, i))
