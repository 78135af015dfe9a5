"""How full each tier is over a simulated step: HBM follows the boundaries' lives."""

from __future__ import annotations

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Home, Plan
from lazytrain.schedule.step_marks import StepMarks
from lazytrain.schedule.timeline import Timeline


def memory_curves(
    plan: Plan, instance: Instance, line: Timeline, marks: StepMarks, begin: float
) -> dict[str, list[tuple[float, int]]]:
    """Return the level of each tier over the step.

    Host and disk buffers are allocated once; HBM follows the boundaries' lives.
    """
    reserve = instance.execution.reserve_bytes if instance.execution else 0
    changes: list[tuple[float, int]] = []
    for i, (size, home) in enumerate(
        zip(instance.boundary_bytes, plan.homes, strict=True)
    ):
        for wave in (*marks.earlier, marks):
            for start, stop in _lives(i, home, line, wave, plan.num_layers):
                changes += [(start - begin, size), (stop - begin, -size)]
    level = instance.fixed_bytes.gpu - reserve
    curve = [(0.0, level)]
    # At one moment what ends is freed before what begins is counted.
    for moment, change in sorted(changes):
        level += change
        curve.append((moment, level))
    held = {
        home: sum(
            size
            for size, other in zip(instance.boundary_bytes, plan.homes, strict=True)
            if other == home
        )
        for home in (Home.CPU, Home.NVME)
    }
    return {
        "gpu": curve,
        "cpu": [(0.0, instance.fixed_bytes.cpu + held[Home.CPU])],
        "nvme": [(0.0, instance.fixed_bytes.nvme + held[Home.NVME])],
    }


def _lives(
    i: int, home: Home, line: Timeline, marks: StepMarks, last: int
) -> list[tuple[float, float]]:
    """Return when a boundary is in HBM: (from, to) in seconds."""

    def end_of(task: int) -> float:
        return line.tasks[task].end_s

    if home == Home.RECOMPUTE:
        return [
            (end_of(made), end_of(used)) for j, made, used in marks.remade if j == i
        ]
    if i == last:
        # Only the loss reads the last boundary; backward starts from its gradient.
        return [(end_of(marks.made[i]), end_of(marks.loss))]
    gone = end_of(marks.block_end[i])
    if home == Home.GPU:
        return [(end_of(marks.made[i]), gone)]
    back = line.tasks[marks.read_from[i]].start_s
    return [(end_of(marks.made[i]), end_of(marks.written[i])), (back, gone)]
