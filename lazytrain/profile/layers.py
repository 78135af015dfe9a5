"""What each layer type of a model costs on this machine, measured one layer at a time.

The layers are the Hugging Face classes, built on the device one by one, so that a model
far larger than the machine can be profiled. The paper's window lengths ``T_w`` and
recomputation costs ``rho_j`` (Section 3) are made from these seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from lazytrain.config import ExecutorSettings, PipelineConfig, RunRow, largest_row
from lazytrain.models.mixer import own_mixers
from lazytrain.models.scales import model_config
from lazytrain.profile.bandwidth import fastest_s
from lazytrain.profile.hardware import device_for, dtype_of, settings_for
from lazytrain.profile.menu import MENU
from lazytrain.provenance import collect
from lazytrain.records import LayerCost, LayerProfile, SaveLevel
from lazytrain.schedule.execution import micro_batch

REPEATS = 3


@dataclass(frozen=True)
class Bench:
    """Where and on how many tokens layers are timed."""

    config: Any
    device: torch.device
    dtype: torch.dtype
    micro_batch: int
    seq_len: int

    @property
    def tokens(self) -> int:
        """Tokens per pass over a layer."""
        return self.micro_batch * self.seq_len

    def hidden(self) -> Tensor:
        """Return random hidden states ``[micro_batch, seq_len, hidden]``."""
        shape = (self.micro_batch, self.seq_len, self.config.hidden_size)
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the fewest seconds of ``work``, including the device's part."""

        def run() -> None:
            work()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        return fastest_s(run, REPEATS)

    def build(self, kind: Callable[[], nn.Module]) -> nn.Module:
        """Build one module on the device in the run's dtype."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(self.device):
                return kind().train()
        finally:
            torch.set_default_dtype(before)


def skeleton(config: Any) -> Any:
    """Return the decoder without storage: its classes, not its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).model


def layer_types(config: Any) -> tuple[str, ...]:
    """Return each layer's type; models of one kind say ``full_attention``."""
    kinds = getattr(config, "layer_types", None)
    return tuple(kinds or ["full_attention"] * config.num_hidden_layers)


@dataclass(frozen=True)
class TimedLayer:
    """One layer on the device with what its forward needs."""

    bench: Bench
    module: nn.Module
    keywords: dict[str, Any]

    def forward(self, hidden: Tensor) -> Tensor:
        """Run the layer; both kinds of return value are accepted."""
        output = self.module(hidden, **self.keywords)
        states: Tensor = output[0] if isinstance(output, tuple) else output
        return states

    def forward_s(self, hidden: Tensor) -> float:
        """Return seconds of a forward without a graph."""
        with torch.no_grad():
            return self.bench.seconds(lambda: self.forward(hidden))

    def round_trip_s(self, hidden: Tensor, gradient: Tensor) -> float:
        """Return seconds of a forward with its graph and the backward through it."""

        def run() -> None:
            torch.autograd.backward(self.forward(hidden), gradient)
            hidden.grad = None
            self.module.zero_grad()

        return self.bench.seconds(run)

    def kept_bytes(self, hidden: Tensor) -> int:
        """Return the bytes that autograd keeps of one forward, weights left out."""
        weights = {p.untyped_storage().data_ptr() for p in self.module.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = self.forward(hidden)
        del output
        return sum(kept.values())


def _timed_layer(bench: Bench, decoder: Any, index: int) -> TimedLayer:
    """Build layer ``index`` on the device, with rotary embeddings and positions."""
    kind = type(decoder.layers[index])
    module = bench.build(lambda: kind(bench.config, index))
    own_mixers(module)  # as the executor's bodies do
    rotary = bench.build(lambda: type(decoder.rotary_emb)(config=bench.config))
    positions = torch.arange(bench.seq_len, device=bench.device)[None]
    rotary_positions = positions
    if bench.config.model_type.startswith("qwen3_5"):
        rotary_positions = positions[None].expand(3, -1, -1)
    keywords = {
        "position_embeddings": rotary(bench.hidden(), rotary_positions),
        "position_ids": positions,
        "attention_mask": None,
    }
    return TimedLayer(bench, module, keywords)


def _peak_extra_bytes(layer: TimedLayer, hidden: Tensor, gradient: Tensor) -> int:
    """Return device bytes that a forward and backward take on top of the inputs."""
    device = layer.bench.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    torch.autograd.backward(layer.forward(hidden), gradient)
    peak = torch.cuda.max_memory_allocated(device) - before
    hidden.grad = None
    layer.module.zero_grad()
    return int(peak)


def measure_layer(bench: Bench, decoder: Any, index: int, name: str) -> LayerCost:
    """Measure one layer type: bytes, seconds, and the save levels of its eager body.

    ``inputs`` keeps the boundary alone and runs the forward again with its graph;
    ``all`` keeps what autograd keeps and recomputes nothing.
    """
    layer = _timed_layer(bench, decoder, index)
    hidden = bench.hidden().requires_grad_()
    gradient = bench.hidden()
    boundary_bytes = hidden.numel() * hidden.element_size()
    forward_s = layer.forward_s(hidden)
    round_trip_s = layer.round_trip_s(hidden, gradient)
    kept_bytes = layer.kept_bytes(hidden)
    # Without a GPU the counted tensors are the transient memory of a recomputation.
    workspace_bytes = kept_bytes
    if bench.device.type == "cuda":
        workspace_bytes = _peak_extra_bytes(layer, hidden, gradient)
    graph_forward_s = min(forward_s, round_trip_s)
    return LayerCost(
        layer_type=name,
        num_parameters=sum(p.numel() for p in layer.module.parameters()),
        weight_bytes=sum(p.nbytes for p in layer.module.parameters()),
        boundary_bytes=boundary_bytes,
        forward_s=forward_s,
        backward_s=round_trip_s,
        workspace_bytes=workspace_bytes,
        levels=(
            SaveLevel(
                name="inputs",
                kept_bytes=boundary_bytes,
                forward_s=forward_s,
                backward_s=round_trip_s,
            ),
            SaveLevel(
                name="all",
                kept_bytes=kept_bytes,
                forward_s=forward_s,
                backward_s=round_trip_s - graph_forward_s,
            ),
        ),
    )


def _measured(
    bench: Bench, decoder: Any, index: int, name: str, body: str, menu: Sequence[str]
) -> LayerCost:
    """Measure one layer type with the body it will run with."""
    if body != "compile":
        return measure_layer(bench, decoder, index, name)
    from lazytrain.profile.compiled import measure_compiled_layer

    shape = (bench.micro_batch, bench.seq_len)
    return measure_compiled_layer(
        bench.config, index, name, shape, bench.device, bench.dtype, menu
    )


def _embedding_s(bench: Bench) -> float:
    """Return seconds of the embedding's forward and backward."""
    config = bench.config
    table = bench.build(lambda: nn.Embedding(config.vocab_size, config.hidden_size))
    shape = (bench.micro_batch, bench.seq_len)
    ids = torch.randint(config.vocab_size, shape, device=bench.device)
    gradient = bench.hidden()
    return bench.seconds(lambda: torch.autograd.backward(table(ids), gradient))


def _loss_s(bench: Bench, decoder: Any, chunk_tokens: int) -> float:
    """Return seconds of final norm, head and cross-entropy, forward and backward."""
    config = bench.config
    norm = bench.build(
        lambda: type(decoder.norm)(config.hidden_size, eps=config.rms_norm_eps)
    )
    head = bench.build(
        lambda: nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    )
    hidden = bench.hidden().flatten(0, 1).requires_grad_()
    labels = torch.randint(config.vocab_size, (bench.tokens,), device=bench.device)

    def run() -> None:
        chunks = zip(
            torch.split(hidden, chunk_tokens),
            torch.split(labels, chunk_tokens),
            strict=True,
        )
        for states, targets in chunks:
            logits = head(norm(states)).float()
            loss = nn.functional.cross_entropy(logits, targets)
            torch.autograd.backward(loss)

    return bench.seconds(run)


def measure_model(
    bench: Bench,
    accelerator: str,
    scale: str,
    model: str,
    settings: ExecutorSettings,
    menu: Sequence[str] = MENU,
) -> LayerProfile:
    """Measure every layer type of one model, its embedding and its loss."""
    decoder = skeleton(bench.config)
    kinds = layer_types(bench.config)
    shape = bench.config
    table = shape.vocab_size * shape.hidden_size
    return LayerProfile(
        accelerator=accelerator,
        scale=scale,
        model=model,
        dtype=settings.dtype,
        body=settings.body,
        tokens=bench.tokens,
        seq_len=bench.seq_len,
        layer_types=kinds,
        layers=tuple(
            _measured(bench, decoder, kinds.index(kind), kind, settings.body, menu)
            for kind in dict.fromkeys(kinds)
        ),
        embedding_parameters=table,
        head_parameters=shape.hidden_size + (0 if shape.tie_word_embeddings else table),
        tied=bool(shape.tie_word_embeddings),
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        loss_s=_loss_s(bench, decoder, settings.loss_chunk_tokens),
        embedding_s=_embedding_s(bench),
        provenance=collect(accelerator),
    )


def bench_for(
    config: Any, accelerator: str, batch: int, seq_len: int, settings: ExecutorSettings
) -> Bench:
    """Return the bench of a batch: its device, type and the executor's micro-batch."""
    return Bench(
        config=config,
        device=device_for(accelerator),
        dtype=dtype_of(settings.dtype),
        micro_batch=micro_batch(batch, seq_len, settings.micro_batch_tokens),
        seq_len=seq_len,
    )


def measure_layers(
    rows: list[RunRow],
    accelerator: str,
    scale: str,
    config: PipelineConfig,
    menu: Sequence[str] = MENU,
) -> LayerProfile:
    """Measure every layer type of one scale; the sheet names model and length.

    ``menu`` names the save levels that a compiled layer is measured at.
    """
    row = largest_row(rows, accelerator, scale)
    settings = settings_for(config, accelerator).executor
    shape = model_config(row.model)
    bench = bench_for(shape, accelerator, row.batch, row.seq_len, settings)
    return measure_model(bench, accelerator, scale, row.model, settings, menu)
