"""A simulated step for the eye: Chrome or Perfetto trace, and a Gantt figure."""

from __future__ import annotations

import json
from pathlib import Path

from lazytrain.records import write_text
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.render import new_figure, save_svg
from lazytrain.schedule.simulate import RESOURCES, Simulation
from lazytrain.schedule.timeline import Task

COLOURS = {
    "forward": "#0072B2",
    "replay": "#D55E00",
    "backward": "#56B4E9",
    "embedding": "#999999",
    "loss": "#999999",
    "weights": "#009E73",
    "gradient": "#CC79A7",
    "update": "#F0E442",
    "state": "#882255",
}
ACTIVATION = "#E69F00"


def write_trace(simulation: Simulation, path: Path) -> None:
    """Write a trace that chrome://tracing and Perfetto open; times in microseconds."""
    events: list[dict[str, object]] = [
        {
            "ph": "M",
            "pid": 0,
            "tid": row,
            "name": "thread_name",
            "args": {"name": resource},
        }
        for row, resource in enumerate(RESOURCES)
    ]
    events += [_event(task) for task in simulation.tasks if task.seconds > 0]
    for tier, curve in simulation.memory.items():
        events += [
            {
                "ph": "C",
                "pid": 0,
                "name": f"{tier} bytes",
                "ts": moment * 1e6,
                "args": {"bytes": size},
            }
            for moment, size in curve
        ]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    write_text(text + "\n", path)


def _event(task: Task) -> dict[str, object]:
    """Return one complete event."""
    return {
        "ph": "X",
        "pid": 0,
        "tid": RESOURCES.index(task.resource),
        "name": task.name,
        "cat": task.name.split()[0],
        "ts": task.start_s * 1e6,
        "dur": task.seconds * 1e6,
    }


def write_gantt(simulation: Simulation, plan: Plan, path: Path) -> None:
    """Draw the step: one row per resource above, HBM over time below (SVG)."""
    figure = new_figure(11.0, 5.5, 2)
    rows, memory = figure.axes
    for row, resource in enumerate(RESOURCES):
        for colour, bars in _bars(simulation, resource).items():
            rows.broken_barh(bars, (-row - 0.4, 0.8), facecolors=colour, lw=0)
    rows.set_yticks([-row for row in range(len(RESOURCES))], RESOURCES)
    rows.set_xlim(0, simulation.step_s)
    rows.set_title(
        f"{plan.name}: {simulation.step_s:.3f} s a step, "
        f"compute {simulation.compute_s:.3f} s",
        fontsize=9,
        loc="left",
    )
    moments, levels = zip(*simulation.memory["gpu"], strict=True)
    memory.step(moments, [size / 2**30 for size in levels], where="post")
    memory.set_xlim(0, simulation.step_s)
    memory.set_ylabel("HBM [GiB]")
    memory.set_xlabel("time [s]")
    save_svg(figure, path)


def _bars(
    simulation: Simulation, resource: str
) -> dict[str, list[tuple[float, float]]]:
    """Return (start, length) of a resource's tasks by colour."""
    bars: dict[str, list[tuple[float, float]]] = {}
    for task in simulation.tasks:
        if task.resource == resource and task.seconds > 0:
            colour = COLOURS.get(task.name.split()[0], ACTIVATION)
            bars.setdefault(colour, []).append((task.start_s, task.seconds))
    return bars
