"""Figures of a plan: where each boundary waits, after the paper's Figure 4.

Colours are Okabe and Ito's; each tier has its own row and marker too, so that nothing
depends on colour. SVG output is byte-stable: no date, fixed ids.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lazytrain.records import write_text
from lazytrain.schedule.plan import Home, Plan
from lazytrain.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = (
    (Home.GPU, "GPU HBM", "#0072B2", "s"),
    (Home.CPU, "CPU DRAM", "#E69F00", "o"),
    (Home.NVME, "NVMe", "#009E73", "D"),
    (Home.RECOMPUTE, "recomputed", "#D55E00", "x"),
)
INCHES_PER_BOUNDARY = 0.14


def new_figure(width: float, height: float, num_rows: int = 1) -> Figure:
    """Return a figure with the look that all planner figures share."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "lazytrain"
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(num_rows, 1, squeeze=False)
    return figure


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure as SVG without a date, atomically."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_text(buffer.getvalue(), path)


def draw_placement(axes: Axes, plan: Plan) -> None:
    """Draw one mark per boundary in its tier's row; shade recomputed blocks."""
    for row, (home, label, colour, marker) in enumerate(ROWS):
        inside = [i for i, other in enumerate(plan.homes) if other == home]
        heights = [-row] * len(inside)
        axes.plot(inside, heights, marker, color=colour, markersize=5, label=f"{label}")
    for block in plan.blocks:
        if block.end > block.start + 1:
            axes.axvspan(block.start, block.end, color="#CCCCCC", alpha=0.4, lw=0)
    axes.set_yticks([-row for row in range(len(ROWS))])
    axes.set_yticklabels(
        [f"{label} ({plan.count(home)})" for home, label, _, _ in ROWS]
    )
    axes.set_xlim(-1, plan.num_layers + 1)
    axes.set_ylim(0.6 - len(ROWS), 0.6)
    axes.set_xlabel("layer boundary")
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.set_title(title(plan), fontsize=9, loc="left")


def title(plan: Plan) -> str:
    """Return a line that says what the plan is and how it was found."""
    how = plan.solve
    size = plan.boundaries[0].size_bytes
    gap = f", gap {how.gap:.2%}" if how.gap else ""
    return (
        f"{plan.model}, {plan.name}: {how.status} ({how.method}{gap}), "
        f"objective {how.objective_s * 1e3:.1f} ms, {format_bytes(size)} per boundary"
    )


def render(plans: Sequence[Plan], path: Path) -> None:
    """Write a placement figure with one panel per plan."""
    widest = max(plan.num_layers for plan in plans)
    width = max(7.0, 2.0 + INCHES_PER_BOUNDARY * widest)
    figure = new_figure(width, 2.0 * len(plans), len(plans))
    for axes, plan in zip(figure.axes, plans, strict=True):
        draw_placement(axes, plan)
    save_svg(figure, path)
