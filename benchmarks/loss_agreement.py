"""Do all systems train the same model? Twenty losses of each beside plain autograd's.

One model, one seed, the same batches. The reference is a Hugging Face model in the
run's dtype, gradients summed in fp32, torch's clipping, torch's AdamW over fp32
masters. It runs with five micro-batch sizes: the spread between them is what order of
summation alone does, and a system agrees if it stays within three times that spread of
their mean. Rows with a bf16 master are shown and not required to agree. Rows with all
moments in 8 bits are also measured from plain autograd with such moments: what lies
between the two references is the format's share, not the system's. Every run is a
process of its own. Writes a record and a figure, and prints one JSON line.

    python benchmarks/loss_agreement.py --scale 3B --layers 8 --jobs 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loss_agreement_run import MODELS, REFERENCE_8BIT, parse, shape_of

from lazytrain import systems
from lazytrain.provenance import collect
from lazytrain.records import write_text
from lazytrain.report.curves import looks_of
from lazytrain.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUN = Path(__file__).with_name("loss_agreement_run.py")
FACTOR = 3.0  # times the reference's own spread
PARTS = 5  # micro-batch sizes of the reference
# Our executor once more with the rivals' master, to show what that alone does.
OURS_BF16 = "lazytrain:bf16-master"
SYSTEMS = (*systems.NAMES, OURS_BF16)
EXEMPT = ("bf16", "bf16-stochastic")


def in_own_process(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run one system or reference in a process of its own and return what it found."""
    with tempfile.TemporaryDirectory(prefix="lazytrain-agreement-") as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, str(RUN), "--child", name, "--out", str(out)]
        names = ("scale", "layers", "batch", "seq_len", "steps", "learning_rate")
        for option in (*names, "dtype", "device"):
            command += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=args.limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return told(name, {"failed": f"over {args.limit_s:g} s"})
        if done.returncode or not out.exists():
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            return told(name, {"failed": " | ".join(lines[-3:])[-600:]})
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return told(name, found)


def told(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Say what a run found, and return it."""
    sys.stderr.write(f"loss_agreement: {name}: {found.get('losses', found)}\n")
    return found


def micro_batches(batch: int) -> list[int]:
    """Return five micro-batch sizes that divide the batch, the batch the last."""
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    if len(sizes) < PARTS:
        raise SystemExit(f"batch {batch} has fewer than {PARTS} divisors; try 16")
    return sizes[-PARTS:]


def judged(
    reference: list[list[float]],
    found: dict[str, Any],
    with_8bit: list[float] | None = None,
) -> dict[str, Any]:
    """Add a system's distance from the reference's mean, and whether it agrees.

    Args:
        reference: Losses of each micro-batch size.
        found: What the system's run left.
        with_8bit: Losses of plain autograd with 8-bit moments; a row of that format
            gets its distance from them too.
    """
    if "losses" not in found:
        return found
    mean, spread = summary(reference)
    gap = distance(found["losses"], mean)
    ratio = gap / max(spread) if max(spread) else float(gap > 0)
    verdict: dict[str, Any] = {
        "difference": gap,
        "times_spread": ratio,
        "required": found["master"] not in EXEMPT,
        "agrees": ratio <= FACTOR,
    }
    if with_8bit is not None and found["optimizer_state"] == "8bit":
        own = distance(found["losses"], with_8bit)
        verdict["difference_from_8bit"] = own
        verdict["times_spread_from_8bit"] = own / max(spread) if max(spread) else None
    return found | verdict


def distance(losses: list[float], others: list[float]) -> float:
    """Return the largest difference of one step."""
    return max(distances(losses, others))


def summary(reference: list[list[float]]) -> tuple[list[float], list[float]]:
    """Return the reference's mean loss and its spread at each step."""
    columns = list(zip(*reference, strict=True))
    mean = [sum(column) / len(column) for column in columns]
    return mean, [max(column) - min(column) for column in columns]


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw losses, and distances from the reference beside its spread.

    A record of before the reference with 8-bit moments is drawn without it.
    """
    figure, (losses, gaps) = new_figure(2, size=(13, 4.6))
    mean, spread = summary(list(record["reference"].values()))
    steps = range(1, len(mean) + 1)
    losses.plot(steps, mean, color="black", linewidth=4, label="plain autograd")
    limit = FACTOR * max(spread)
    gaps.axhspan(0, max(spread), color="0.85", label="its spread over micro-batches")
    gaps.axhline(limit, color="black", linestyle="--", label=f"{FACTOR:g} times that")
    if with_8bit := record.get("reference_8bit"):
        label = "plain autograd, 8-bit moments"
        gaps.plot(steps, distances(with_8bit, mean), "--", color="0.4", label=label)
    shown = {k: v for k, v in record["systems"].items() if "losses" in v}
    looks = looks_of(list(shown))
    for name, found in shown.items():
        look = looks[name]
        drawn: dict[str, Any] = {
            "linestyle": "-" if found["required"] else ":",
            "color": look.colour,
            "linewidth": look.width / 2,
        }
        losses.plot(steps, found["losses"], **drawn)
        drawn |= {"marker": look.marker, "markersize": look.width / 2 + 2}
        label = f"{name} ({found['master']}, {found['optimizer_state']})"
        gaps.plot(steps, distances(found["losses"], mean), **drawn, label=label)
    finish(losses, gaps, limit)
    layers = f"{record['num_layers']} layers of {record['model']}"
    figure.suptitle(f"{layers}, {record['device']}", fontsize=9)
    save_figure(figure, path)


def distances(losses: list[float], mean: list[float]) -> list[float]:
    """Return how far each loss is from the reference's mean."""
    return [abs(a - b) for a, b in zip(losses, mean, strict=True)]


def finish(losses: Axes, gaps: Axes, limit: float) -> None:
    """Name the axes, and put the long legend where no curve is."""
    from matplotlib.ticker import MaxNLocator

    for axes in (losses, gaps):
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    losses.set_ylabel("loss")
    losses.legend(fontsize=7, frameon=False)
    gaps.set_ylabel("distance from the reference's mean")
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


def main() -> None:
    """Run everything, judge, write, print."""
    args = parse()
    chosen = args.systems.split(",") if args.systems else list(SYSTEMS)
    sizes = micro_batches(args.batch)
    names = [f"reference={size}" for size in sizes]
    names.append(f"{REFERENCE_8BIT}={sizes[-1]}")
    with ThreadPoolExecutor(max(1, args.jobs)) as pool:
        runs = list(pool.map(lambda name: in_own_process(args, name), names + chosen))
    references, found_by_system = runs[: len(names)], runs[len(names) :]
    broken = [found for found in references if "losses" not in found]
    if broken:
        raise SystemExit(f"the reference failed: {broken[0]}")
    *curves, with_8bit = [found["losses"] for found in references]
    provenance = collect("cpu" if args.device == "cpu" else "")
    record = {
        "benchmark": "loss_agreement",
        "model": MODELS[args.scale],
        "num_layers": shape_of(args).num_hidden_layers,
        "device": provenance.device,
        "arguments": {
            k: str(v) for k, v in vars(args).items() if k not in ("child", "out")
        },
        "factor": FACTOR,
        "reference": {
            str(size): losses for size, losses in zip(sizes, curves, strict=True)
        },
        "reference_8bit": with_8bit,
        "spread": max(summary(curves)[1]),
        "systems": {
            name: judged(curves, found, with_8bit)
            for name, found in zip(chosen, found_by_system, strict=True)
        },
        "provenance": provenance.model_dump(),
    }
    out = args.out or Path(os.environ.get("OUT", "."))
    out.mkdir(parents=True, exist_ok=True)
    write_text(json.dumps(record, indent=1) + "\n", out / "loss_agreement.json")
    draw(record, out / "loss_agreement.svg")
    sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
