"""Updates as tasks of a timeline, with state that is read and written around them.

State on NVMe moves in units: two are read ahead of the one that is updated, a unit is
read behind its own last write, and a staging page is free once it has been written. One
disk serves both ways in turn: a benchmark of both at once moved the bytes of half of
each rate.
"""

from __future__ import annotations

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.staging import STATE_SLOTS, UNIT_PARAMETERS
from lazytrain.schedule.timeline import Timeline

RESOURCE = "nvme_state"
READ_AHEAD = STATE_SLOTS - 2


class StateTasks:
    """Adds the updates of one step after another.

    Args:
        plan: Says where each part's state lives.
        instance: Its costs of moving state.
        line: Where tasks are added.
    """

    def __init__(self, plan: Plan, instance: Instance, line: Timeline) -> None:
        self._line = line
        self._read_s = instance.costs.state_read_s
        self._write_s = instance.costs.state_write_s
        parts = plan.parts
        self._moved = {p.name for p in parts if p.optimizer_state.home == "nvme"}
        self._updates: list[int] = []
        self._writes: list[int] = []
        self._last_write: dict[tuple[str, int], int] = {}

    def update(
        self, name: str, parameters: int, seconds: float, ready: int | None, step: int
    ) -> int:
        """Add a part's update; return its last task.

        Args:
            name: The part.
            parameters: How many it has.
            seconds: Time of its update.
            ready: Task that its gradient and the clip factor wait for.
            step: Number of the step.
        """
        if name not in self._moved:
            return self._line.add(
                f"update {name}", "optimizer", seconds, (ready,), 0, step
            )
        units = max(1, -(-parameters // UNIT_PARAMETERS))
        done = -1
        for unit in range(units):
            share = 1 / units
            read = self._line.add(
                f"state in {name}",
                RESOURCE,
                parameters * share * self._read_s,
                self._may_be_read(name, unit),
                0,
                step,
            )
            done = self._line.add(
                f"update {name}", "optimizer", seconds * share, (ready, read), 0, step
            )
            write = self._line.add(
                f"state out {name}",
                RESOURCE,
                parameters * share * self._write_s,
                (done,),
                0,
                step,
            )
            self._updates.append(done)
            self._writes.append(write)
            self._last_write[name, unit] = write
        return done

    def _may_be_read(self, name: str, unit: int) -> tuple[int | None, ...]:
        """Return what a unit's read waits for."""
        ahead, slots = READ_AHEAD + 1, STATE_SLOTS
        return (
            self._last_write.get((name, unit)),
            self._updates[-ahead] if len(self._updates) >= ahead else None,
            self._writes[-slots] if len(self._writes) >= slots else None,
        )
