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

The second runs nothing and takes no option but ``--out``: it makes verdicts and figure
from a record's losses anew, in their place, and notes by which commit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loss_agreement_figure import draw
from loss_agreement_run import MODELS, REFERENCE_8BIT, parse, shape_of
from loss_agreement_verdict import Recorded, judged_again

from lazytrain import systems
from lazytrain.errors import InvalidInput
from lazytrain.provenance import collect
from lazytrain.records import read, write_text

RUN = Path(__file__).with_name("loss_agreement_run.py")
NAME = "loss_agreement.json"
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
    if args.record is None:
        folder = args.out or Path(os.environ.get("OUT", "."))
        leave(judged_again(measured(args)), folder / NAME)
        return
    leave(kept_record(args.record), args.out / NAME if args.out else args.record)


def kept_record(path: Path) -> dict[str, Any]:
    """Return a record judged again, with the commit that did so if that changed it.

    Raises:
        SystemExit: Naming file, field and value, if it is no such record.
    """
    try:
        if path.suffix != ".json":
            raise InvalidInput("record", str(path), "name a .json file")
        read(Recorded, path)
    except InvalidInput as error:
        raise SystemExit(str(error)) from error
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    record = judged_again(kept)
    if record == kept:
        return record
    judge = collect("")
    return record | {"judged_by": judge.commit + ("-dirty" if judge.dirty else "")}


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Run the references and the systems; return what they left, not judged yet."""
    chosen = args.systems.split(",") if args.systems else list(SYSTEMS)
    sizes = micro_batches(args.batch)
    names = [f"reference={size}" for size in sizes]
    names.append(f"{REFERENCE_8BIT}={sizes[-1]}")
    with ThreadPoolExecutor(max(1, args.jobs)) as pool:
        runs = list(pool.map(lambda name: in_own_process(args, name), names + chosen))
    references, found_by_system = runs[: len(names)], runs[len(names) :]
    *curves, with_8bit = [reference_losses(found) for found in references]
    provenance = collect("cpu" if args.device == "cpu" else "")
    return {
        "benchmark": "loss_agreement",
        "model": MODELS[args.scale],
        "num_layers": shape_of(args).num_hidden_layers,
        "device": provenance.device,
        "arguments": {k: str(v) for k, v in vars(args).items() if k not in UNRECORDED},
        "reference": dict(zip(map(str, sizes), curves, strict=True)),
        "reference_8bit": with_8bit,
        "systems": dict(zip(chosen, found_by_system, strict=True)),
        "provenance": provenance.model_dump(),
    }


def reference_losses(found: dict[str, Any]) -> list[float]:
    """Return what a reference's run lost by step.

    Raises:
        SystemExit: If it failed, or a loss is not finite: nothing can be held to it.
    """
    losses: list[float] = found.get("losses", [])
    if not losses or not all(map(math.isfinite, losses)):
        raise SystemExit(f"the reference failed: {found}")
    return losses


def leave(record: dict[str, Any], path: Path) -> None:
    """Write a record, its figure beside it, and print the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(json.dumps(record, indent=1) + "\n", path)
    draw(record, path.with_suffix(".svg"))
    sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
