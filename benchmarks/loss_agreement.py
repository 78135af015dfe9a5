"""Do all systems train the same model? Twenty losses of each beside plain autograd's.

One model, one seed, the same batches. The reference is a Hugging Face model in the
run's dtype, gradients summed in fp32, torch's clipping, torch's AdamW over fp32
masters. It runs with five micro-batch sizes: the spread between them is what order of
summation alone does, and a system agrees if it stays within three times that spread of
their mean. Rows with a bf16 master are shown and not required to agree. Rows with all
moments in 8 bits are held to plain autograd with such moments; their distance from that
with fp32 moments, which is the format's share, is recorded too. Every run is a process
of its own. Writes a record and a figure, and prints one JSON line.

    python benchmarks/loss_agreement.py --scale 3B --layers 8 --jobs 3
    python benchmarks/loss_agreement.py --record DIR/loss_agreement.json

The second runs nothing: it makes verdicts and figure from a record's losses anew.
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
from typing import Any

from loss_agreement_figure import draw
from loss_agreement_run import MODELS, REFERENCE_8BIT, parse, shape_of
from loss_agreement_verdict import FACTOR, judged, judged_again, summary

from lazytrain import systems
from lazytrain.provenance import collect
from lazytrain.records import write_text

RUN = Path(__file__).with_name("loss_agreement_run.py")
UNRECORDED = ("child", "out", "record")
PARTS = 5  # micro-batch sizes of the reference
# Our executor once more with the rivals' master, to show what that alone does.
OURS_BF16 = "lazytrain:bf16-master"
SYSTEMS = (*systems.NAMES, OURS_BF16)


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


def main() -> None:
    """Run everything, or read a record; judge, write, print."""
    args = parse()
    if args.record:
        kept = json.loads(args.record.read_text(encoding="utf-8"))
        leave(judged_again(kept), args.out or args.record.parent)
        return
    leave(measured(args), args.out or Path(os.environ.get("OUT", ".")))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Run the references and the systems and return the record."""
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
    return {
        "benchmark": "loss_agreement",
        "model": MODELS[args.scale],
        "num_layers": shape_of(args).num_hidden_layers,
        "device": provenance.device,
        "arguments": {k: str(v) for k, v in vars(args).items() if k not in UNRECORDED},
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


def leave(record: dict[str, Any], folder: Path) -> None:
    """Write a record and its figure, and print the record."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(json.dumps(record, indent=1) + "\n", folder / "loss_agreement.json")
    draw(record, folder / "loss_agreement.svg")
    sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
