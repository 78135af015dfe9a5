"""One decoder layer, resident: the roofline of the executor, by body and save level.

For each combination it times a forward that keeps its graph and the backward through
it, and counts the bytes kept, at one micro-batch. Prints one JSON line; with OUT set,
also writes it there.

    python benchmarks/layer.py --scales 3B,7B --micro 16 --levels inputs,keep-0.2
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from pathlib import Path

import torch

from lazytrain.models.flops import train_flops
from lazytrain.models.scales import model_config
from lazytrain.profile.compiled import ResidentLayer
from lazytrain.provenance import collect

MODELS = {
    "3B": "Qwen2.5-3B",
    "7B": "Qwen2.5-7B",
    "14B": "Qwen2.5-14B",
    "27B": "Qwen3.6-27B",  # layer 0 has linear attention, layer 3 full attention
}
SEQ_LEN = 1024


def main() -> None:
    """Measure every combination asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", default="3B")
    parser.add_argument("--micro", default="16")
    parser.add_argument("--bodies", default="compile")
    parser.add_argument("--levels", default="inputs")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--layers", default="0", help="indices of the layers to build")
    parser.add_argument("--name", default="layer")
    args = parser.parse_args()
    rows = []
    combinations = itertools.product(
        args.scales.split(","),
        (int(n) for n in args.micro.split(",")),
        args.bodies.split(","),
        args.levels.split(","),
        args.attention.split(","),
        (int(n) for n in args.layers.split(",")),
    )
    for scale, micro, body, level, attention, index in combinations:
        named = {
            "scale": scale,
            "micro_batch": micro,
            "body": body,
            "level": level,
            "attention": attention,
            "layer": index,
        }
        layer = ResidentLayer(
            model_config(MODELS[scale]),
            index,
            (micro, SEQ_LEN),
            torch.device("cuda"),
            torch.bfloat16,
        )
        reading = layer.read(body, level, attention)
        flops = train_flops(layer.num_parameters, micro * SEQ_LEN)
        seconds = reading.forward_s + reading.backward_s
        measured = vars(reading) | {"tflops": flops / seconds / 1e12}
        rows.append(named | measured)
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
        torch.cuda.empty_cache()
    record = {"benchmark": args.name, "rows": rows}
    line = json.dumps(record | {"provenance": collect().model_dump()})
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / f"{args.name}.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
