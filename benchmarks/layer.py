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
import time
from pathlib import Path
from typing import Any

import torch

from lazytrain.executor.bodies import Bodies
from lazytrain.executor.handles import Rebinder
from lazytrain.executor.layers import LayerRunner, Place
from lazytrain.executor.layout import Layout
from lazytrain.models.decoder import Decoder, layer_part
from lazytrain.models.scales import model_config
from lazytrain.provenance import collect

MODELS = {"3B": "Qwen2.5-3B", "7B": "Qwen2.5-7B", "14B": "Qwen2.5-14B"}
SEQ_LEN = 1024
REPEATS = 8


class Bench:
    """One layer of a model on the device with random weights.

    Args:
        scale: Which model.
        micro_batch: Sequences per pass.
        body: ``eager`` or ``compile``.
        level: Save level.
        attention: Attention backend of compiled bodies.
    """

    def __init__(
        self, scale: str, micro_batch: int, body: str, level: str, attention: str
    ) -> None:
        config = model_config(MODELS[scale])
        config.num_hidden_layers = 1
        config.layer_types = config.layer_types[:1]
        decoder = Decoder(config)
        part = decoder.parts[1]
        layout = Layout.of(part.tensors, 2)
        device = torch.device("cuda")
        flat = torch.zeros(layout.numel, dtype=torch.bfloat16, device=device)
        for name, view in layout.named_views(flat).items():
            view.copy_(decoder.initial_tensors(part, 0, device)[name])
        shape = (micro_batch, SEQ_LEN, decoder.hidden_size)
        self.hidden = torch.randn(shape, dtype=torch.bfloat16, device=device)
        self.gradient = torch.randn_like(self.hidden)
        owners = {layer_part(0): flat, "boundary.0": self.hidden.flatten()}
        self.rebinder = Rebinder(owners.__getitem__)
        kind = decoder.layer_types[0]
        bodies = Bodies(decoder, {kind: list(part.tensors)}, body, attention)
        self.runner = LayerRunner(bodies, {kind: layout}, self.rebinder)
        self.runner.rotary = decoder.rotary(SEQ_LEN, device, torch.bfloat16)
        self.place = Place(
            0, kind, layer_part(0), "boundary.0", 0, flat, owners["boundary.0"], level
        )
        self.flops = 6.0 * part.num_parameters * micro_batch * SEQ_LEN

    def forward(self) -> None:
        """Run forward, keeping what the level keeps."""
        self.runner.forward(self.place, self.hidden)

    def backward(self) -> None:
        """Run backward through the kept graph."""
        self.runner.backward(self.place, self.hidden, self.gradient)

    def measure(self) -> dict[str, Any]:
        """Return median seconds of forward and backward, and kept bytes."""
        start = time.perf_counter()
        self.forward()
        self.backward()
        torch.cuda.synchronize()
        compile_s = time.perf_counter() - start
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times: list[tuple[float, float]] = []
        for _ in range(REPEATS):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record()
            self.forward()
            marks[1].record()
            self.backward()
            marks[2].record()
            marks[2].synchronize()
            times.append(
                (marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2]))
            )
        forward_ms = sorted(t[0] for t in times)[REPEATS // 2]
        backward_ms = sorted(t[1] for t in times)[REPEATS // 2]
        return {
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
            "tflops": self.flops / (forward_ms + backward_ms) / 1e9,
            "kept_bytes": self.rebinder.kept_bytes,
            "workspace_bytes": torch.cuda.max_memory_allocated() - before,
            "compile_s": compile_s,
        }


def main() -> None:
    """Measure every combination asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", default="3B")
    parser.add_argument("--micro", default="16")
    parser.add_argument("--bodies", default="compile")
    parser.add_argument("--levels", default="inputs")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--name", default="layer")
    args = parser.parse_args()
    rows = []
    combinations = itertools.product(
        args.scales.split(","),
        (int(n) for n in args.micro.split(",")),
        args.bodies.split(","),
        args.levels.split(","),
        args.attention.split(","),
    )
    for scale, micro, body, level, attention in combinations:
        named = {
            "scale": scale,
            "micro_batch": micro,
            "body": body,
            "level": level,
            "attention": attention,
        }
        rows.append(named | Bench(scale, micro, body, level, attention).measure())
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
        torch.cuda.empty_cache()
    record = {"benchmark": args.name, "rows": rows}
    line = json.dumps(record | {"provenance": collect().model_dump()})
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / f"{args.name}.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
