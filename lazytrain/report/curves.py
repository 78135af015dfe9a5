"""Loss and exact match along a training, by system, after the paper's Figure 6.

The curves come from ``steps.jsonl`` and ``evaluations.jsonl`` beside a run's record:
measured points only, each system's under its own name, the model's name on top. The
loss is a running mean, because a batch's own loss says more about the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lazytrain.evaluated import EvaluationPoint
from lazytrain.records import Contract, RunRecord, StepRecord, read, read_lines
from lazytrain.report.figures import COLOURS, new_figure, save_figure
from lazytrain.report.frames import SYSTEMS, fixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW: Final = 9  # steps of the running mean
MARKERS: Final = "osv^D<>ph"
WIDEST, THINNEST = 5.0, 1.0  # lines, in points


@dataclass(frozen=True)
class Course:
    """One training: what ran, its steps and its evaluations."""

    record: RunRecord
    steps: list[StepRecord]
    points: list[EvaluationPoint]


class CurveRow(Contract):
    """One evaluation of one training."""

    accelerator: str
    device: str
    scale: str
    model: str
    system: str
    step: str
    epoch: str
    rows: str
    num_rows: str
    exact_match_percent: str


def courses(records: Sequence[Path]) -> list[Course]:
    """Read the trainings behind some record files, in the paper's order of systems.

    A run that took no step, or whose steps were not kept, has no curve.
    """
    found = []
    for path in records:
        steps = path.with_name("steps.jsonl")
        if not steps.is_file():
            continue
        lines = path.with_name("evaluations.jsonl")
        points = read_lines(EvaluationPoint, lines) if lines.is_file() else []
        found.append(
            Course(read(RunRecord, path), read_lines(StepRecord, steps), points)
        )
    return sorted(found, key=lambda course: _place(course.record))


def _place(record: RunRecord) -> tuple[str, str, int]:
    known = record.system in SYSTEMS
    return (
        record.accelerator,
        record.scale,
        SYSTEMS.index(record.system) if known else len(SYSTEMS),
    )


def curve_table(found: Sequence[Course]) -> list[CurveRow]:
    """Return every evaluation of every training as a row."""
    return [
        CurveRow(
            **course.record.model_dump(
                include={"accelerator", "device", "scale", "model", "system"}
            ),
            step=str(point.step),
            epoch=fixed(point.epoch, 4),
            rows=point.rows,
            num_rows=str(point.num_rows),
            exact_match_percent=fixed(100 * point.exact_match, 2),
        )
        for course in found
        for point in course.points
    ]


def running_mean(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Return the mean of each value and the ``window - 1`` before it."""
    starts = (max(0, place - window + 1) for place in range(len(values)))
    return [
        sum(values[start : place + 1]) / (place + 1 - start)
        for place, start in enumerate(starts)
    ]


def curves_figure(found: Sequence[Course], path: Path) -> None:
    """Draw loss beside exact match, one row of panels per model."""
    models = list(dict.fromkeys(course.record.model for course in found))
    figure, panels = new_figure(2, max(len(models), 1))
    for row, model in enumerate(models):
        shown = [course for course in found if course.record.model == model]
        loss, match = panels[2 * row], panels[2 * row + 1]
        looks = looks_of([course.record.system for course in shown])
        for course in shown:
            _draw(loss, match, course, looks[course.record.system])
        devices = sorted({course.record.device for course in shown})
        loss.set_title(f"{model}, {'; '.join(devices)}", fontsize=9)
        loss.set_ylabel(f"training loss, mean of {WINDOW} steps")
        match.set_ylabel("exact match, %")
        match.set_title("small: sample of the test rows; large: all", fontsize=9)
        for axes in (loss, match):
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


@dataclass(frozen=True)
class Look:
    """How one system's curves are drawn."""

    colour: str
    marker: str
    width: float


def looks_of(systems: Sequence[str]) -> dict[str, Look]:
    """Return a look of its own for each system of a panel, in the order of drawing.

    There are more systems than colours, so those that are shown share them out. Each
    line is thinner than those below it: of equal curves all stay in sight.
    """
    names = list(dict.fromkeys(systems))
    last = len(names) - 1
    return {
        name: Look(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            THINNEST + (WIDEST - THINNEST) * (last - place) / max(1, last),
        )
        for place, name in enumerate(names)
    }


def _draw(loss: Axes, match: Axes, course: Course, look: Look) -> None:
    """Draw one training into both panels."""
    system = course.record.system
    taken = [step for step in course.steps if not step.skipped]
    loss.plot(
        [step.step for step in taken],
        running_mean([step.loss for step in taken]),
        color=look.colour,
        linewidth=look.width,
        label=system,
    )
    samples = [point for point in course.points if point.rows == "sample"]
    whole = [point for point in course.points if point.rows == "full"]
    for points, size, style in ((samples, 3, "-"), (whole, 8, "")):
        match.plot(
            [point.step for point in points],
            [100 * point.exact_match for point in points],
            color=look.colour,
            marker=look.marker,
            markersize=size + look.width,
            linestyle=style,
            linewidth=look.width,
            label=system if points and (points is samples or not samples) else None,
        )
