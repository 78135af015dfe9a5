"""The gated delta rule at the 27B hybrid's heads: ours against the library's reference.

Times one forward, and one forward with its backward, of 16 key and 48 value heads of
128 over 8k tokens, ours eager and compiled, in fp32 and with TF32 products; compares
outputs and gradients with the library's. Prints one JSON line; with OUT set, also
writes it there.

    python benchmarks/mixer.py --rows 8 --tokens 1024
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lazytrain.models.delta_rule import gated_delta_rule
from lazytrain.provenance import collect

NAMES = ("output", "query", "key", "value", "log_decay", "beta")
Rule = Callable[..., Tensor]


def library_rule() -> Rule:
    """Return the library's reference, called like ours: it scales queries itself."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    reference = module.torch_chunk_gated_delta_rule

    def rule(query: Tensor, key: Tensor, *rest: Tensor) -> Tensor:
        value_heads, key_heads = rest[0].shape[2], key.shape[2]
        query = query * query.shape[-1] ** 0.5
        # Some releases leave repeating the heads to the caller.
        query, key = (
            x.repeat_interleave(value_heads // key_heads, 2) for x in (query, key)
        )
        output: Tensor = reference(query, key, *rest)[0]
        return output

    return rule


def inputs_of(args: argparse.Namespace, device: torch.device) -> list[Tensor]:
    """Return random fp32 inputs as a layer makes them."""
    torch.manual_seed(0)
    keys = (args.rows, args.tokens, args.key_heads, args.width)
    values = (args.rows, args.tokens, args.value_heads)
    drawn = [
        F.normalize(torch.randn(keys, device=device), dim=-1) * args.width**-0.5,
        F.normalize(torch.randn(keys, device=device), dim=-1),
        torch.randn(*values, args.width, device=device),
        -0.3 * torch.rand(values, device=device),
        torch.rand(values, device=device),
    ]
    return [tensor.requires_grad_() for tensor in drawn]


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median milliseconds of some work."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def outcome(rule: Rule, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of a weighted sum of it."""
    output = rule(*inputs)
    weights = torch.linspace(-1, 1, output.numel(), device=output.device)
    total = (output * weights.view_as(output)).sum()
    return [output.detach(), *torch.autograd.grad(total, inputs)]


def errors(found: list[Tensor], truth: list[Tensor]) -> dict[str, float]:
    """Return relative errors by name."""
    pairs = zip(NAMES, found, truth, strict=True)
    return {n: float((a - b).norm() / b.norm()) for n, a, b in pairs}


def measured(
    rule: Rule, inputs: list[Tensor], truth: list[Tensor], args: argparse.Namespace
) -> dict[str, Any]:
    """Time one rule and compare it with the library's numbers."""
    device = inputs[0].device
    start = time.perf_counter()
    found = outcome(rule, inputs)
    synchronize(device)
    first_s = time.perf_counter() - start
    gradient = torch.randn_like(found[0])

    def forward() -> None:
        with torch.no_grad():
            rule(*inputs)

    def round_trip() -> None:
        torch.autograd.grad(rule(*inputs), inputs, gradient)

    forward()
    return {
        "first_call_s": first_s,
        "forward_ms": median_ms(forward, device, args.repeats),
        "forward_backward_ms": median_ms(round_trip, device, args.repeats),
        "errors": errors(found, truth),
    }


def main() -> None:
    """Measure every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("rows", 8),
        ("tokens", 1024),
        ("key-heads", 16),
        ("value-heads", 48),
        ("width", 128),
        ("repeats", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--variants", default="library,eager,compiled,compiled-tf32")
    args = parser.parse_args()
    inputs = inputs_of(args, torch.device(args.device))
    library = library_rule()
    truth = outcome(library, inputs)
    found: dict[str, Any] = {}
    for name in args.variants.split(","):
        precision = "high" if name.endswith("tf32") else "highest"
        torch.set_float32_matmul_precision(precision)
        rule = library if name == "library" else gated_delta_rule
        if name.startswith("compiled"):
            torch._dynamo.reset()
            rule = torch.compile(rule, fullgraph=True, dynamic=False)
        found[name] = measured(rule, inputs, truth, args)
        sys.stderr.write(json.dumps({name: found[name]}) + "\n")
    record = {"benchmark": "mixer", "arguments": vars(args), "variants": found}
    line = json.dumps(record | {"provenance": collect().model_dump()})
    sys.stdout.write(line + "\n")
    if out := os.environ.get("OUT"):
        (Path(out) / "mixer.json").write_text(line + "\n")


if __name__ == "__main__":
    main()
