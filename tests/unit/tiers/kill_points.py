"""Kill a small offloaded training at random points, start again, compare the losses.

Usage: kill_points.py ROOT NUM_POINTS. Prints one JSON object. Processes are forked
before torch runs anything, so each costs milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
from faulty_layer import KillLayer

from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.state_stream import READ_AHEAD, StateStream
from lazytrain.tiers.sweep import sweep

WIDTH, LAYERS, ROWS, STEPS = 48, 4, 33, 3
CHUNK_BYTES = 4096
NEVER = 1 << 30


def train(root: Path, layer: KillLayer) -> list[float]:
    """Train tanh layers; boundaries and momenta live on the tier."""
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
        for _ in range(LAYERS)
    ]
    rows = torch.randn(ROWS, WIDTH, generator=generator)
    with NvmeTier(root, 1 << 20, chunk_bytes=CHUNK_BYTES, layer=layer) as tier:
        state = StateStream(tier, num_slots=2)
        names = [f"layer{index}" for index in range(LAYERS)]
        for name in names:
            state.declare(name, {"momentum": torch.zeros(WIDTH, WIDTH)})
        return [step(tier, state, names, weights, rows) for _ in range(STEPS)]


def step(tier, state, names, weights, rows):
    """Run one step: forward keeps only what the tier holds."""
    value = rows
    for index, weight in enumerate(weights):
        tier.put(f"boundary.{index}", value)
        value = torch.tanh(value @ weight)
    loss = float((value**2).mean())
    upstream = 2 * value / value.numel()
    gradients = {}
    for index in reversed(range(LAYERS)):
        entering = torch.empty_like(rows)
        tier.fetch(f"boundary.{index}", entering).wait()
        leaving = torch.tanh(entering @ weights[index])
        upstream = upstream * (1 - leaving**2)
        gradients[index] = entering.T @ upstream
        upstream = upstream @ weights[index].T
        tier.release(f"boundary.{index}")
    for index, name in enumerate(names):
        with state.using(name) as tensors:
            tensors["momentum"].mul_(0.9).add_(gradients[index])
            weights[index] = weights[index] - 0.5 * tensors["momentum"]
    return loss


def in_child(root: Path, at_call: int) -> tuple[int, dict[str, object]]:
    """Train in a forked process; return how it ended and what it reported."""
    report, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(report)
        torch.set_num_threads(1)
        layer = KillLayer(at_call)
        losses = train(root, layer)
        result = {"losses": losses, "calls": at_call - layer.left}
        os.write(write_end, json.dumps(result).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(report) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(text) if text else {}


def calls_of_every_run(calls: int) -> int:
    """Return how many of an undisturbed run's calls any other run makes as well.

    What the stream reads ahead behind the last step depends on whether a page is quiet
    in time: up to ``READ_AHEAD`` units, or none.
    """
    chunks_per_unit = -(-WIDTH * WIDTH * torch.float32.itemsize // CHUNK_BYTES)
    return calls - READ_AHEAD * chunks_per_unit


def main(root: Path, num_points: int) -> None:
    """Run the points and print what happened."""
    _, undisturbed = in_child(root, NEVER)
    last_call = calls_of_every_run(int(undisturbed["calls"]))
    chooser = random.Random(0)
    counts = {"killed": 0, "swept": 0, "same": 0}
    for _ in range(num_points):
        status, _ = in_child(root, chooser.randint(1, last_call))
        counts["killed"] += os.WIFSIGNALED(status) and os.WTERMSIG(status) == (
            signal.SIGKILL
        )
        _, again = in_child(root, NEVER)
        counts["same"] += again.get("losses") == undisturbed["losses"]
        counts["swept"] += [one.action for one in sweep(root, 0.0)] == ["removed"]
    losses = undisturbed["losses"]
    left = [entry.name for entry in root.iterdir()]
    sys.stdout.write(json.dumps({**counts, "losses": losses, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
