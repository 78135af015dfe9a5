"""A small language model trained with 8-bit fractions 0, 0.02 and 1 of its parameters.

Claim: after 2000 steps the held-out loss is the same within seed noise. A transformer
learns sequences of a random second-order Markov chain; weights are bf16 with the split
master, gradients bf16 and clipped, exactly as the executor hands them over. For each
seed the three fractions share the initial weights and the order of the data. Writes
the record and the curves, and prints one JSON line.

    python benchmarks/optimizer_convergence.py --steps 2000 --seeds 3 --out results
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lazytrain.config import OptimizerSettings
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.clip import SkipCounter, clip_factor, square_sums
from lazytrain.optim.partition import eight_bit_share, eight_bit_slices
from lazytrain.optim.state import TensorSlice
from lazytrain.provenance import collect
from lazytrain.records import write_text

FRACTIONS = (0.0, 0.02, 1.0)
VOCAB, WIDTH, LAYERS, LENGTH, BATCH = 64, 96, 2, 32, 8
ALIGN = 128
LEARNING_RATE = 2e-3


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="default: $OUT")
    return parser.parse_args()


class Model(nn.Module):
    """A causal transformer of about a quarter of a million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits (B, T, vocabulary)."""
        length = tokens_BT.shape[1]
        places = torch.arange(length)
        hidden = self.token(tokens_BT) + self.place(places)
        mask = self.mask[:length, :length]
        hidden = self.body(hidden, mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


@dataclass(frozen=True)
class Chain:
    """A random second-order Markov chain with a few likely successors per pair."""

    probabilities: Tensor

    @classmethod
    def make(cls) -> Chain:
        """Draw the chain; it is the same for every seed of the training."""
        generator = torch.Generator().manual_seed(1234)
        logits = torch.randn(VOCAB, VOCAB, VOCAB, generator=generator) * 1.5
        logits += 2 * torch.randn(1, VOCAB, VOCAB, generator=generator)
        return cls(logits.softmax(-1))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``count`` sequences of LENGTH + 1 tokens."""
        tokens = torch.randint(VOCAB, (count, LENGTH + 1), generator=generator)
        for t in range(2, LENGTH + 1):
            rows = self.probabilities[tokens[:, t - 2], tokens[:, t - 1]]
            tokens[:, t] = torch.multinomial(rows, 1, generator=generator)[:, 0]
        return tokens


@dataclass
class Trainer:
    """One run: a flat bf16 weight buffer under a model without weights of its own."""

    model: Model
    slices: list[TensorSlice]
    optimizer: HostAdamW
    weight: Tensor
    state: Any
    skips: SkipCounter

    @classmethod
    def make(cls, fraction: float, seed: int) -> Trainer:
        """Build the model of a seed and give a fraction of it 8-bit state."""
        torch.manual_seed(seed)
        model = Model()
        slices, end = [], 0
        for name, parameter in model.named_parameters():
            decay = 0.1 if parameter.dim() > 1 else 0.0
            slices.append(TensorSlice(name, end, parameter.numel(), decay))
            end += -(-parameter.numel() // ALIGN) * ALIGN
        weight = torch.zeros(end, dtype=torch.bfloat16)
        for piece, parameter in zip(slices, model.parameters(), strict=True):
            part = weight[piece.offset : piece.offset + piece.numel]
            part.copy_(parameter.detach().flatten())
        settings = OptimizerSettings(threads=1, betas=(0.9, 0.99))
        optimizer = HostAdamW(settings, torch.bfloat16)
        flags = eight_bit_slices({"model": slices}, fraction)["model"]
        state = optimizer.new_state(weight, slices, flags)
        return cls(model, slices, optimizer, weight, state, SkipCounter())

    def loss(self, flat: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean loss with the weights read from a flat tensor."""
        shapes = {name: p.shape for name, p in self.model.named_parameters()}
        weights = {
            piece.name: flat[piece.offset : piece.offset + piece.numel].view(
                shapes[piece.name]
            )
            for piece in self.slices
        }
        logits = functional_call(self.model, weights, (tokens[:, :-1],))
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step(self, number: int, rate: float, tokens: Tensor) -> float:
        """Train on one batch and return its loss."""
        flat = self.weight.float().requires_grad_()
        loss = self.loss(flat, tokens)
        loss.backward()
        if flat.grad is None:
            raise RuntimeError("the loss does not depend on the weights")
        gradient = flat.grad.bfloat16()
        sums = square_sums(gradient, self.slices, threads=1).tolist()
        clip = clip_factor(sums, 1.0)
        if self.skips.admit(clip, number):
            self.optimizer.update(
                self.state,
                gradient,
                step=number,
                learning_rate=rate,
                scale=clip.factor,
            )
        return loss.item()

    def evaluate(self, tokens: Tensor) -> float:
        """Return the held-out loss."""
        with torch.no_grad():
            return self.loss(self.weight.float(), tokens).item()


def rate_at(step: int, steps: int) -> float:
    """Return a learning rate that warms up over 5 % and falls linearly to a tenth."""
    warm = max(1, steps // 20)
    if step <= warm:
        return LEARNING_RATE * step / warm
    return LEARNING_RATE * (1 - 0.9 * (step - warm) / (steps - warm))


def train(fraction: float, seed: int, steps: int, chain: Chain) -> dict[str, Any]:
    """Train one model and return its curve and final held-out loss."""
    trainer = Trainer.make(fraction, seed)
    order = torch.Generator().manual_seed(1000 + seed)
    batches = chain.sample(steps * BATCH, order).split(BATCH)
    held_out = chain.sample(512, torch.Generator().manual_seed(7))
    curve = []
    for step, tokens in enumerate(batches, start=1):
        loss = trainer.step(step, rate_at(step, steps), tokens)
        if step % max(1, steps // 100) == 0:
            curve.append([step, loss])
    flags = [spot.is_eight_bit for spot in trainer.state.placements]
    share = eight_bit_share({"model": trainer.slices}, {"model": flags})
    return {
        "fraction": fraction,
        "seed": seed,
        "eight_bit_share": share,
        "parameters": sum(piece.numel for piece in trainer.slices),
        "kernel": trainer.optimizer.kernel,
        "final_loss": trainer.evaluate(held_out),
        "skipped_steps": trainer.skips.skipped,
        "curve": curve,
    }


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare mean final losses with the spread over seeds at fraction 0."""
    by_fraction = {
        fraction: [r["final_loss"] for r in runs if r["fraction"] == fraction]
        for fraction in FRACTIONS
    }
    base = by_fraction[0.0]
    noise = statistics.stdev(base) if len(base) > 1 else 0.0
    means = {str(f): statistics.fmean(losses) for f, losses in by_fraction.items()}
    worst = max(abs(mean - means["0.0"]) for mean in means.values())
    return {
        "mean_final_loss": means,
        "seed_noise": noise,
        "largest_difference_to_fp32_state": worst,
        "is_within_seed_noise": worst <= noise,
    }


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw every run's training loss, one colour per fraction."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "optimizer_convergence"
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for index, fraction in enumerate(FRACTIONS):
        for run in (r for r in runs if r["fraction"] == fraction):
            label = f"8-bit fraction {fraction:g}" if run["seed"] == 0 else None
            steps, losses = zip(*run["curve"], strict=True)
            axes.plot(steps, losses, color=f"C{index}", label=label, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def record(runs: list[dict[str, Any]], steps: int, provenance: Any) -> dict[str, Any]:
    """Return the record of all runs."""
    return {
        "benchmark": "optimizer_convergence",
        "steps": steps,
        **summarise(runs),
        "runs": runs,
        "provenance": provenance.model_dump(mode="json"),
        "complete": True,
    }


def over_all(work: Callable[[float, int], dict[str, Any]], seeds: int) -> list[Any]:
    """Run every fraction with every seed."""
    return [work(fraction, seed) for seed in range(seeds) for fraction in FRACTIONS]


def main() -> None:
    """Train, compare, write the record and the figure, print one JSON line."""
    arguments = parse()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    provenance, chain = collect("cpu"), Chain.make()
    runs = over_all(lambda f, s: train(f, s, arguments.steps, chain), arguments.seeds)
    result = record(runs, arguments.steps, provenance)
    folder = arguments.out or Path(os.environ.get("OUT", "."))
    folder.mkdir(parents=True, exist_ok=True)
    plot(runs, folder / "optimizer_convergence.svg")
    write_text(
        json.dumps(result, indent=1) + "\n", folder / "optimizer_convergence.json"
    )
    print(json.dumps({key: value for key, value in result.items() if key != "runs"}))


if __name__ == "__main__":
    main()
