"""The plan: the one typed JSON that planner and executor share.

It says where every boundary waits, which blocks are recomputed, how the batch is cut,
and where each part's weights, gradients and optimizer state live. What the model can
check alone it checks here; budgets, rates and exposure are the checker's.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from lazytrain.records import Contract, canonical_json, sha256_text


class Home(StrEnum):
    """Where a boundary waits between forward and backward."""

    GPU = "gpu"
    CPU = "cpu"
    NVME = "nvme"
    RECOMPUTE = "recompute"


LETTERS = {"G": Home.GPU, "C": Home.CPU, "N": Home.NVME, "R": Home.RECOMPUTE}


class Boundary(Contract):
    """One layer boundary: 0 is the embedding's output, i the output of layer i-1."""

    home: Home
    size_bytes: int = Field(ge=0)


class Block(Contract):
    """A backward block: boundaries ``start`` and ``end`` are kept, none between.

    ``replay`` reruns layers start..end-2 without a graph, then goes back layer by
    layer; ``fused`` runs the block's forward once with all graphs kept.
    """

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    mode: Literal["replay", "fused"] = "replay"


class Group(Contract):
    """A share of the batch and how it passes through the layers."""

    sequences: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    order: Literal["layer-major", "batch-major"]
    save_level: tuple[str, ...] = Field(description="per layer: inputs .. all")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.sequences % self.micro_batch:
            raise ValueError(
                f"micro_batch = {self.micro_batch} does not divide the group's "
                f"{self.sequences} sequences"
            )
        return self


class Gradient(Contract):
    """How a part's gradient is summed and where it goes."""

    dtype: Literal["bf16", "fp32"]
    home: Literal["gpu", "cpu"]
    drain: Literal["whole", "as-consumed"] = "whole"


class OptimizerState(Contract):
    """Where and how a part's AdamW state is held."""

    home: Literal["gpu", "cpu", "nvme"] = "cpu"
    format: Literal["fp32", "8bit", "hybrid"]
    eight_bit_fraction: float = Field(default=0.0, ge=0, le=1)
    master: Literal["fp32", "fp32-split", "bf16", "bf16-stochastic"]


class Part(Contract):
    """Embedding, one decoder layer, or final norm and head."""

    name: str
    kind: Literal["embedding", "layer", "head"]
    layer_type: str = ""
    num_parameters: int = Field(ge=0)
    weight_bytes: int = Field(ge=0)
    tied_to: str | None = None
    weights: Literal["resident", "streamed"]
    gradient: Gradient
    optimizer: Literal["cpu", "gpu", "gpu-streamed"] = "cpu"
    optimizer_state: OptimizerState


class Template(Contract):
    """One compiled body: per layer type and save level."""

    layer_type: str
    save_level: str
    body: Literal["eager", "compile", "liger"]
    kept_bytes: int | None = None


class Transfer(Contract):
    """One planned copy: the executor keeps its order and deadline.

    ``window_bytes`` are the solver's amounts per window, for the record only.
    """

    boundary: int
    link: Literal["d2h", "h2d", "nvme_write", "nvme_read"]
    release: str
    deadline: str
    window_bytes: dict[int, float] = Field(default_factory=dict)


class Prediction(Contract):
    """What the simulator expects of one step under this plan."""

    step_s: float
    exposed_s: dict[str, float]
    peak_bytes: dict[str, int]
    window_s: dict[str, float] = Field(
        default_factory=dict, description="compute per window: `forward 3`, `loss`, ..."
    )


class Solve(Contract):
    """How the plan came about; ``seconds`` is not part of the plan's hash."""

    status: Literal["optimal", "feasible", "heuristic"]
    scope: Literal["full", "restricted"] = "full"
    fixed: str = ""
    method: str
    objective_s: float
    bound_s: float | None = None
    gap: float | None = None
    nodes: int | None = None
    seconds: float = 0.0
    solver: str = ""
    parameters: dict[str, str] = Field(default_factory=dict)
    seed: int = 0


class Plan(Contract):
    """A whole step, planned."""

    version: Literal[1] = 1
    name: str
    model: str
    instance_sha256: str
    num_layers: int = Field(ge=1)
    layer_types: tuple[str, ...]
    batch: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    boundaries: tuple[Boundary, ...]
    blocks: tuple[Block, ...]
    groups: tuple[Group, ...]
    parts: tuple[Part, ...] = ()
    templates: tuple[Template, ...] = ()
    update_order: tuple[str, ...] = ()
    keep_at_turn: tuple[int, ...] = ()
    kept_home: tuple[Literal["gpu", "cpu"], ...] = ()
    read_ahead_blocks: int = Field(default=2, ge=1)
    prefetch_distance: int = Field(default=1, ge=0)
    weight_slots: int = Field(default=3, ge=1)
    grad_slots: int = Field(default=2, ge=1)
    chunk_bytes: int = Field(default=64 * 2**20, ge=2**20)
    loss_chunk_tokens: int = Field(default=4096, ge=1)
    optimizer_threads: int = Field(default=0, ge=0)
    reserve_bytes: int = Field(default=0, ge=0)
    transfers: tuple[Transfer, ...] = ()
    prediction: Prediction | None = None
    solve: Solve

    @property
    def sha256(self) -> str:
        """Hash of the plan, blind to how long the solve took."""
        return sha256_text(canonical_json(self, exclude={"solve": {"seconds"}}))

    @property
    def homes(self) -> tuple[Home, ...]:
        """Home of each boundary 0..L."""
        return tuple(boundary.home for boundary in self.boundaries)

    def count(self, home: Home) -> int:
        """Number of boundaries with this home."""
        return self.homes.count(home)

    @model_validator(mode="after")
    def _boundaries_and_blocks(self) -> Self:
        """Blocks tile 0..L and end exactly at the materialized boundaries."""
        if len(self.boundaries) != self.num_layers + 1:
            raise ValueError(
                f"boundaries has {len(self.boundaries)} entries, "
                f"needs num_layers + 1 = {self.num_layers + 1}"
            )
        kept = [i for i, home in enumerate(self.homes) if home != Home.RECOMPUTE]
        wanted = list(pairwise(kept))
        given = [(block.start, block.end) for block in self.blocks]
        if kept[:1] != [0] or kept[-1] != self.num_layers or given != wanted:
            raise ValueError(
                "blocks must run from boundary 0 to boundary "
                f"{self.num_layers} over the boundaries that have a home"
            )
        return self

    @model_validator(mode="after")
    def _groups(self) -> Self:
        """Group sequences add up to the batch; one save level per layer."""
        total = sum(group.sequences for group in self.groups)
        if total != self.batch:
            raise ValueError(f"groups hold {total} sequences, batch is {self.batch}")
        for group in self.groups:
            if len(group.save_level) != self.num_layers:
                raise ValueError("save_level needs one entry per layer")
        return self

    @model_validator(mode="after")
    def _slots(self) -> Self:
        """Refuse rings too small for what runs ahead, and sums without a home."""
        if self.weight_slots < self.prefetch_distance + 1:
            raise ValueError(
                f"weight_slots = {self.weight_slots} cannot hold the current layer "
                f"and prefetch_distance = {self.prefetch_distance} more"
            )
        batch_major = any(group.order == "batch-major" for group in self.groups)
        for part in self.parts:
            if batch_major and part.kind == "layer" and part.gradient.home != "gpu":
                raise ValueError(
                    f"part {part.name}: a batch-major group sums gradients over "
                    "micro-batches and needs gradient.home = gpu"
                )
        return self


def blocks_of(
    homes: tuple[Home, ...], mode: Literal["replay", "fused"] = "replay"
) -> tuple[Block, ...]:
    """Return the blocks that a row of homes implies."""
    kept = [i for i, home in enumerate(homes) if home != Home.RECOMPUTE]
    return tuple(
        Block(start=start, end=end, mode=mode) for start, end in pairwise(kept)
    )
