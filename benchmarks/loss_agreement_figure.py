"""The figure of the comparison of losses: curves, and distances beside the spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loss_agreement_verdict import FACTOR, distances, own_reference, summary

from lazytrain.report.curves import looks_of
from lazytrain.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw losses, and distances from the reference beside its spread.

    Each row's distance is from the reference with its own format of moments; how far
    those of 8 bits are from those of fp32 is a curve of its own.
    """
    figure, (losses, gaps) = new_figure(2, size=(13, 4.6))
    mean, spread = summary(list(record["reference"].values()))
    steps = range(1, len(mean) + 1)
    losses.plot(steps, mean, color="black", linewidth=4, label="plain autograd")
    _draw_references(gaps, mean, max(spread), record.get("reference_8bit"))
    _draw_systems(losses, gaps, mean, record)
    finish(losses, gaps, FACTOR * max(spread))
    layers = f"{record['num_layers']} layers of {record['model']}"
    figure.suptitle(f"{layers}, {record['device']}", fontsize=9)
    save_figure(figure, path)


def _draw_references(
    gaps: Axes, mean: list[float], spread: float, with_8bit: list[float] | None
) -> None:
    """Draw the reference's spread, what is allowed, and what 8-bit moments do to it."""
    gaps.axhspan(0, spread, color="0.85", label="plain autograd over micro-batches")
    label = f"{FACTOR:g} times that spread"
    gaps.axhline(FACTOR * spread, color="black", linestyle="--", label=label)
    if with_8bit:
        steps = range(1, len(mean) + 1)
        look: dict[str, Any] = {"linestyle": "-.", "color": "0.4"}
        label = "plain autograd, 8-bit moments (from fp32 ones)"
        gaps.plot(steps, distances(with_8bit, mean), **look, label=label)


def _draw_systems(
    losses: Axes, gaps: Axes, mean: list[float], record: dict[str, Any]
) -> None:
    """Draw each system's losses, and their distance from what they are held to."""
    steps = range(1, len(mean) + 1)
    shown = {k: v for k, v in record["systems"].items() if "losses" in v}
    for name, look in looks_of(list(shown)).items():
        found = shown[name]
        drawn: dict[str, Any] = {
            "linestyle": "-" if found["required"] else ":",
            "color": look.colour,
            "linewidth": look.width / 2,
        }
        losses.plot(steps, found["losses"], **drawn)
        drawn |= {"marker": look.marker, "markersize": look.width / 2 + 2}
        label = f"{name} ({found['master']}, {found['optimizer_state']})"
        own = own_reference(found, mean, record.get("reference_8bit"))
        gaps.plot(steps, distances(found["losses"], own), **drawn, label=label)


def finish(losses: Axes, gaps: Axes, limit: float) -> None:
    """Name the axes, and put the long legend where no curve is."""
    from matplotlib.ticker import MaxNLocator

    for axes in (losses, gaps):
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    losses.set_ylabel("loss")
    losses.legend(fontsize=7, frameon=False)
    gaps.set_ylabel("distance from plain autograd (8bit: with 8-bit moments)")
    gaps.set_yscale("symlog", linthresh=max(limit / 100, 1e-12))
    gaps.set_ylim(bottom=0)
    title = "system (master, state)\ndotted: not required to agree"
    gaps.legend(
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        fontsize=7,
        frameon=False,
        title=title,
        title_fontsize=7,
    )
