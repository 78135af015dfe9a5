"""The optimizer's speed on one billion bf16 parameters, against DeepSpeed's CPUAdam.

All kernels run in the same process, interleaved, on the same threads and gradients;
each figure is the median over the rounds. Bytes per parameter and step: 14 for 8-bit
state with the split master, 26 for fp32 state with it, 22 for CPUAdam (bf16 weights and
gradients, fp32 states, no master). Claims: full 8-bit at least 1.5 times CPUAdam's
parameters per second and 80 % of a stream triad; fp32 state at least 0.95 times its
bytes per second; clipping below 2 % of a step. Prints one JSON line, and writes it to
``$OUT/optimizer.json`` if OUT is set.

    python benchmarks/optimizer.py --parameters 1000000000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.optim import native
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.clip import clip_factor, square_sums
from lazytrain.optim.pages import zeros
from lazytrain.optim.state import PartState, TensorSlice
from lazytrain.provenance import collect

BYTES = {"eight_bit": 14, "fp32": 26, "deepspeed": 22}
TRIAD_BYTES = 12
PART = 200_000_000
SHARES = (0.3, 0.3, 0.3, 0.07, 0.02, 0.01)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1_000_000_000)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--no-deepspeed", action="store_true")
    parser.add_argument("--rss", choices=("eight_bit", "fp32"), help=argparse.SUPPRESS)
    return parser.parse_args()


def slices_of(numel: int) -> list[TensorSlice]:
    """Cut a part like a decoder layer: a few large tensors and some small ones."""
    slices, start = [], 0
    for index, share in enumerate(SHARES):
        size = int(numel * share) // 128 * 128
        slices.append(TensorSlice(f"tensor.{index}", start, size, 0.1))
        start += size
    return slices


def random_bf16(numel: int, scale: float) -> Tensor:
    """Return normal numbers, one million of them over and over."""
    target = zeros(numel, torch.bfloat16, torch.device("cpu"))
    piece = (torch.randn(1_000_003) * scale).bfloat16()
    for start in range(0, numel, piece.numel()):
        part = target[start : start + piece.numel()]
        part.copy_(piece[: part.numel()])
    return target


@dataclass
class Bench:
    """One kernel with its parts; ``gradients`` are shared between kernels."""

    optimizer: HostAdamW
    parts: list[PartState]
    gradients: list[Tensor]
    scale: float = 0.7
    steps: int = 0

    @classmethod
    def make(
        cls,
        gradients: list[Tensor],
        settings: OptimizerSettings,
        kernel: str,
        *,
        eight_bit: bool,
    ) -> Bench:
        """Allocate weights and state for every gradient."""
        optimizer = HostAdamW(settings, torch.bfloat16, kernel=kernel)
        parts = []
        for gradient in gradients:
            slices = slices_of(gradient.numel())
            weight = random_bf16(gradient.numel(), 0.02)
            flags = [eight_bit] * len(slices)
            parts.append(optimizer.new_state(weight, slices, flags))
        return cls(optimizer, parts, gradients)

    def step(self, scale: float | None = None) -> None:
        """Update every part once, with this kernel's clip factor or another."""
        self.steps += 1
        factor = self.scale if scale is None else scale
        for part, gradient in zip(self.parts, self.gradients, strict=True):
            self.optimizer.update(
                part, gradient, step=self.steps, learning_rate=1e-5, scale=factor
            )


def seconds(call: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def make_gradients(numel: int) -> list[Tensor]:
    """Return bf16 gradients of parts that add up to ``numel``."""
    parts = max(1, round(numel / PART))
    return [random_bf16(numel // parts, 1e-3) for _ in range(parts)]


def rss_per_parameter(arguments: argparse.Namespace) -> float:
    """Return RSS growth per parameter: weights, state, gradients, two steps."""
    settings = OptimizerSettings(threads=arguments.threads)
    small = make_gradients(100_000)
    Bench.make(small, settings, arguments.kernel, eight_bit=True).step()
    process = psutil.Process()
    before = process.memory_info().rss
    gradients = make_gradients(arguments.parameters)
    bench = Bench.make(
        gradients, settings, arguments.kernel, eight_bit=arguments.rss == "eight_bit"
    )
    bench.step()
    bench.step()
    return (process.memory_info().rss - before) / sum(g.numel() for g in gradients)


def rss_in_child(kind: str, arguments: argparse.Namespace) -> float:
    """Measure RSS growth in a process of its own."""
    numel = min(arguments.parameters, 400_000_000)
    command = [sys.executable, __file__, "--rss", kind, "--parameters", str(numel)]
    options = ["--threads", str(arguments.threads), "--kernel", arguments.kernel]
    done = subprocess.run(
        [*command, *options], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout)


def start_deepspeed_build() -> subprocess.Popen[bytes]:
    """Compile DeepSpeed's operator beside whatever needs no clock."""
    code = "from lazytrain.optim.deepspeed import load_operator; load_operator()"
    return subprocess.Popen([sys.executable, "-c", code], stdout=sys.stderr)


@dataclass
class Times:
    """Seconds of every round, by what was timed."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, call: Callable[[], object]) -> None:
        """Time a call and keep the reading."""
        self.rounds.setdefault(name, []).append(seconds(call))

    def median(self, name: str) -> float:
        """Return the median of a name's readings."""
        return statistics.median(self.rounds[name])


def measure(
    benches: Mapping[str, Bench], arrays: list[Tensor], rounds: int, threads: int
) -> Times:
    """Run all kernels in turn, round by round, after two warm-up steps each."""
    library = native.library()
    if library is None:
        raise SystemExit("no native kernels: there is nothing to measure")
    for bench in benches.values():
        bench.step()
        bench.step()
    times, eight = Times(), benches["eight_bit"]
    everything = [(p, g) for p, g in zip(eight.parts, eight.gradients, strict=True)]

    def sums() -> list[float]:
        return [
            x for p, g in everything for x in square_sums(g, p.slices, threads).tolist()
        ]

    ready = sums()
    for _ in range(rounds):
        for name, streaming in (("triad", False), ("triad_streaming", True)):
            times.take(
                name,
                lambda s=streaming: library.triad(arrays, threads=threads, streaming=s),
            )
        for name, bench in benches.items():
            times.take(name, bench.step)
        times.take("unclipped", lambda: eight.step(1.0))
        times.take("clip_factor", lambda: clip_factor(ready, 1.0))
        times.take("square_sums", sums)
    return times


def report(times: Times, numel: int, triad_numel: int) -> dict[str, Any]:
    """Turn seconds into rates and the claimed ratios."""
    triad = {
        name: TRIAD_BYTES * triad_numel / times.median(name)
        for name in ("triad", "triad_streaming")
    }
    out: dict[str, Any] = {f"{name}_bytes_per_s": rate for name, rate in triad.items()}
    for name, per_parameter in BYTES.items():
        if name in times.rounds:
            rate = numel / times.median(name)
            out[f"{name}_parameters_per_s"] = rate
            out[f"{name}_bytes_per_s"] = per_parameter * rate
    eight = out["eight_bit_bytes_per_s"]
    out["eight_bit_parameters_per_s_by_kernel"] = {
        name.partition(".")[2]: numel / times.median(name)
        for name in times.rounds
        if name.startswith("eight_bit.")
    }
    out["eight_bit_share_of_triad"] = eight / out["triad_bytes_per_s"]
    out["eight_bit_share_of_streaming_triad"] = (
        eight / out["triad_streaming_bytes_per_s"]
    )
    step = times.median("unclipped")
    added = times.median("eight_bit") - step + times.median("clip_factor")
    out["clip_added_share"] = added / step
    out["square_sums_on_host_share"] = times.median("square_sums") / step
    if "deepspeed" in times.rounds:
        rival = out["deepspeed_parameters_per_s"]
        out["speedup_vs_deepspeed_cpuadam"] = out["eight_bit_parameters_per_s"] / rival
        out["fp32_bytes_vs_deepspeed"] = (
            out["fp32_bytes_per_s"] / out["deepspeed_bytes_per_s"]
        )
    return out


def make_benches(arguments: argparse.Namespace) -> dict[str, Bench]:
    """Allocate the kernels under test; DeepSpeed's comes last and may be left out."""
    gradients = make_gradients(arguments.parameters)
    ours = OptimizerSettings(threads=arguments.threads)
    kernel = arguments.kernel
    benches = {
        "eight_bit": Bench.make(gradients, ours, kernel, eight_bit=True),
        "fp32": Bench.make(gradients, ours, kernel, eight_bit=False),
    }
    if not arguments.no_deepspeed:
        theirs = OptimizerSettings(type="deepspeed_adam", master="bf16")
        benches["deepspeed"] = Bench.make(gradients, theirs, "auto", eight_bit=False)
        # Its operator cannot scale: a factor would cost it a copy of the gradient.
        benches["deepspeed"].scale = 1.0
    for isa in native.ISAS[1 : native.ISAS.index(best_isa()) + 1]:
        # The same parts under every instruction set: no more memory, one comparison.
        eight = benches["eight_bit"]
        other = HostAdamW(ours, torch.bfloat16, kernel=isa)
        benches[f"eight_bit.{isa}"] = Bench(other, eight.parts, gradients)
    return benches


def best_isa() -> str:
    """Return the widest instruction set here."""
    library = native.library()
    if library is None:
        raise SystemExit("no native kernels: there is nothing to measure")
    return library.best_isa


def main() -> None:
    """Measure and print one JSON line."""
    arguments = parse()
    if arguments.rss:
        print(rss_per_parameter(arguments))
        return
    threads = arguments.threads or native.default_threads()
    torch.set_num_threads(threads)
    provenance = collect("cpu")
    build = None if arguments.no_deepspeed else start_deepspeed_build()
    rss = {kind: rss_in_child(kind, arguments) for kind in ("eight_bit", "fp32")}
    if build is not None and build.wait():
        raise SystemExit("DeepSpeed's operator failed to build")
    benches = make_benches(arguments)
    numel = sum(gradient.numel() for gradient in benches["eight_bit"].gradients)
    arrays = [torch.ones(max(numel // 6, 1)) for _ in range(3)]
    times = measure(benches, arrays, arguments.rounds, threads)
    result = {
        "benchmark": "optimizer",
        "parameters": numel,
        "threads": threads,
        "kernel": benches["eight_bit"].optimizer.kernel,
        **report(times, numel, arrays[0].numel()),
        **{f"{kind}_rss_bytes_per_parameter": value for kind, value in rss.items()},
        "rounds_s": times.rounds,
        "provenance": provenance.model_dump(mode="json"),
        "complete": True,
    }
    line = json.dumps(result)
    print(line)
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "optimizer.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
