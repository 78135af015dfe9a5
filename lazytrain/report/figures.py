"""Bar charts of Tables 3 and 4 as byte-stable SVG, after the paper's Figure 3.

A bar is a measured number; a run that reached a limit is its name where the bar would
stand. Colours are the colour-blind safe set of Okabe and Ito.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazytrain.records import write_text
from lazytrain.report.accuracy import AccuracyRow
from lazytrain.report.frames import NOT_AVAILABLE, SYSTEMS
from lazytrain.report.tables import ThroughputRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#999999",
    "#56B4E9",
    "#0072B2",
    "#CC79A7",
    "#E69F00",
    "#F0E442",
    "#009E73",
    "#D55E00",
    "#000000",
)
BAR_WIDTH = 0.8


def new_figure(
    num_axes: int, num_rows: int = 1, size: tuple[float, float] | None = None
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with rows of axes and a fixed look; axes come row by row.

    Args:
        num_axes: Axes of a row.
        num_rows: Rows.
        size: Width and height in inches; None takes 5.5 by 3.6 for each axes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "lazytrain"
    mpl.rcParams["svg.fonttype"] = "none"
    columns = max(num_axes, 1)
    usual = (5.5 * columns, 3.6 * num_rows)
    figure = Figure(figsize=size or usual, layout="constrained")
    axes = figure.subplots(num_rows, columns, squeeze=False)
    return figure, list(axes.flat)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG without a date, atomically."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_text(buffer.getvalue(), path)


def _number(cell: str) -> float | None:
    """Return a measured cell's number, or None for OOM and the like."""
    try:
        return float(cell)
    except ValueError:
        return None


def grouped_bars(
    axes: Axes, cells: dict[tuple[str, str], str], groups: Sequence[str]
) -> None:
    """Draw one bar per (group, system), or the cell's text where it is no number."""
    systems = [name for name in SYSTEMS if any(key[1] == name for key in cells)]
    width = BAR_WIDTH / max(len(systems), 1)
    for column, system in enumerate(systems):
        style: dict[str, Any] = {
            "color": COLOURS[SYSTEMS.index(system) % len(COLOURS)],
            "hatch": "//" * (SYSTEMS.index(system) // len(COLOURS)),
            "label": system,
            "width": width,
        }
        offset = (column - (len(systems) - 1) / 2) * width
        for place, group in enumerate(groups):
            cell = cells.get((group, system))
            if cell is None:
                continue
            value = _number(cell)
            axes.bar(place + offset, value or 0.0, **style)
            style.pop("label", None)
            if value is None:
                axes.text(
                    place + offset, 0, f" {cell}", rotation=90, ha="center", fontsize=7
                )
    axes.set_xticks(range(len(groups)), groups)
    axes.spines[["top", "right"]].set_visible(False)


def throughput_figure(rows: Sequence[ThroughputRow], path: Path) -> None:
    """Draw tokens per second by scale and system, one panel per accelerator.

    One that nobody has run has no panel, unless none was run.
    """
    run = {row.accelerator for row in rows if row.device != NOT_AVAILABLE}
    accelerators = sorted(run or {row.accelerator for row in rows})
    figure, panels = new_figure(len(accelerators))
    for axes, accelerator in zip(panels, accelerators, strict=False):
        shown = [row for row in rows if row.accelerator == accelerator]
        groups = list(dict.fromkeys(_label(row) for row in shown))
        cells = {(_label(row), row.system): row.tokens_per_s for row in shown}
        grouped_bars(axes, cells, groups)
        devices = sorted({row.device for row in shown} - {NOT_AVAILABLE})
        axes.set_title(
            f"{accelerator}: {'; '.join(devices) or NOT_AVAILABLE}", fontsize=9
        )
        axes.set_ylabel("tokens per second")
        axes.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def quality_figure(rows: Sequence[AccuracyRow], path: Path) -> None:
    """Draw exact match after training, with a line where it stood before."""
    groups = list(dict.fromkeys(_label(row) for row in rows))
    figure, (axes,) = new_figure(1)
    cells = {(_label(row), row.system): row.exact_match_percent for row in rows}
    grouped_bars(axes, cells, groups)
    for place, group in enumerate(groups):
        before = [
            _number(row.exact_match_before_percent)
            for row in rows
            if _label(row) == group
        ]
        for value in {item for item in before if item is not None}:
            axes.hlines(value, place - 0.4, place + 0.4, colors="black", linestyles=":")
    axes.set_ylabel("exact match, %")
    axes.set_title("after training; dotted: before", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def _label(row: ThroughputRow | AccuracyRow) -> str:
    """Return a group's label: the scale, and the stand-in's name if one ran."""
    return row.scale if row.model == row.stands_for else row.model
