"""What the planner is asked: sizes, times, rates and budgets of one training step.

Symbols follow Section 3 of the paper: boundary ``i`` has size ``A_i``, transition ``j``
costs ``rho_j``, window ``w`` lasts ``T_w``; budgets ``M_G``, ``M_C``, ``M_N``.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lazytrain.records import Contract, canonical_json, sha256_text


class Bandwidth(Contract):
    """Link rates in bytes per second; each must be above zero."""

    d2h: float = Field(gt=0)
    h2d: float = Field(gt=0)
    nvme_write: float = Field(gt=0)
    nvme_read: float = Field(gt=0)


class Budget(Contract):
    """Bytes that activations may take in each tier."""

    gpu: int = Field(ge=0)
    cpu: int = Field(ge=0)
    nvme: int = Field(ge=0)


class Options(Contract):
    """Choices the paper leaves open.

    ``transient`` charges recomputed boundaries to the GPU budget: ``static`` adds the
    widest block to all that is kept; ``profile`` adds each block to what is still kept
    when the backward reaches it, which is what a step really holds.
    """

    read_deadline: Literal["paper", "layer", "block"] = "paper"
    nvme_coupling: Literal["independent", "gds"] = "independent"
    transient: bool = False
    memory: Literal["static", "profile"] = "static"


class Fixed(Contract):
    """Variables fixed before the solve; empty for an unrestricted instance."""

    gpu: tuple[int, ...] | None = None
    edges: tuple[tuple[int, int], ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is fixed."""
        return self.gpu is None and self.edges is None


class PartSpec(Contract):
    """One streamable part of the model: embedding, a decoder layer, or the head."""

    name: str
    kind: Literal["embedding", "layer", "head"]
    layer_type: str = ""
    num_parameters: int = Field(ge=0)
    weight_bytes: int = Field(ge=0)
    gradient_bytes: int = Field(ge=0)
    tied_to: str | None = None


class Execution(Contract):
    """How the step is to be run: cut of the batch, rings, optimizer.

    The paper's schedules are one group, one micro-batch, level ``inputs``.
    """

    batch: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    micro_batch: int = Field(ge=1, description="sequences per pass over a layer")
    order: Literal["layer-major", "batch-major"] = "layer-major"
    save_level: str = "inputs"
    body: Literal["eager", "compile", "liger"] = "eager"
    resident_weights: bool = False
    prefetch_distance: int = Field(default=1, ge=0)
    weight_slots: int = Field(default=3, ge=1)
    grad_slots: int = Field(default=2, ge=1)
    chunk_bytes: int = Field(default=64 * 2**20, ge=2**20)
    loss_chunk_tokens: int = Field(default=4096, ge=1)
    gradient_drain: Literal["whole", "as-consumed"] = "whole"
    reserve_bytes: int = Field(default=0, ge=0)
    optimizer: str = "hybrid_adamw_8bit"
    eight_bit_fraction: float = Field(default=0.02, ge=0, le=1)
    master: Literal["fp32-split", "bf16", "bf16-stochastic", "fp32"] = "fp32-split"
    optimizer_threads: int = Field(default=0, ge=0, description="0: all cores")
    state_on_nvme: tuple[str, ...] = Field(
        default=(), description="parts whose optimizer state is streamed from disk"
    )

    @property
    def wave_rows(self) -> int:
        """Sequences that pass through the layers together."""
        return self.micro_batch if self.order == "batch-major" else self.batch

    @property
    def num_waves(self) -> int:
        """Passes through the whole model in a step."""
        return self.batch // self.wave_rows


class Costs(Contract):
    """What the simulator needs beside the paper's windows; zero is not modelled.

    Window times may be longer than the compute they stand for (a layer whose weights
    take longer to arrive than to use), so the compute itself is kept here.
    """

    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    embedding_s: float = Field(default=0.0, ge=0)
    turn_s: float = Field(default=0.0, ge=0, description="head and loss")
    optimizer_parameters_per_s: float = Field(default=0.0, ge=0)
    state_read_s: float = Field(
        default=0.0, ge=0, description="to read one parameter's state from NVMe"
    )
    state_write_s: float = Field(default=0.0, ge=0)


class LevelCost(Contract):
    """One save level of a layer type.

    ``kept_bytes`` are beyond the layer's input, of one wave (in layer-major order the
    whole batch); ``step_s`` is forward and backward of the whole batch.
    """

    name: str
    kept_bytes: int = Field(ge=0)
    step_s: float = Field(ge=0)


class Instance(Contract):
    """One planning problem. All per-layer tuples run over windows 0..L-1.

    Seconds are of the whole batch, bytes of boundaries those of one wave.
    """

    version: Literal[1] = 1
    name: str
    model: str
    layers: int = Field(ge=1)
    layer_types: tuple[str, ...]
    boundary_bytes: tuple[int, ...]
    rho_s: tuple[float, ...]
    window_write_s: tuple[float, ...]
    window_read_s: tuple[float, ...]
    mandatory_d2h_bytes: tuple[int, ...]
    mandatory_h2d_bytes: tuple[int, ...]
    bandwidth: Bandwidth
    budget_bytes: Budget
    lambda_z_s: float = Field(default=1e-4, ge=0)
    lambda_n_s: float = Field(default=1e-3, ge=0)
    lambda_c_s: float = Field(
        default=0.0, ge=0, description="cost of a boundary in DRAM; 0 in the paper"
    )
    max_block: int | None = Field(default=None, ge=1)
    options: Options = Options()
    fixed: Fixed = Fixed()
    method: str = Field(
        default="milp", description="what `lazytrain solve` runs unless told"
    )
    levels: dict[str, tuple[LevelCost, ...]] = Field(
        default_factory=dict, description="save levels by layer type, cheapest first"
    )
    fixed_bytes: Budget = Field(
        default=Budget(gpu=0, cpu=0, nvme=0),
        description="bytes in each tier that no schedule changes",
    )
    costs: Costs = Costs()
    parts: tuple[PartSpec, ...] = ()
    execution: Execution | None = None
    made_from: dict[str, str] = Field(
        default_factory=dict, description="sha256 of each file this was made from"
    )
    chosen: str = Field(
        default="", description="why this order and these waves, where it was a choice"
    )

    @property
    def sha256(self) -> str:
        """Hash that a plan made for this instance carries.

        It is blind to state on NVMe where there is none, as instances were before, and
        to the reason for a choice.
        """
        unused: dict[str, Any] = {"chosen": True}
        if self.costs.state_read_s == 0:
            unused["costs"] = {"state_read_s", "state_write_s"}
        if self.execution and not self.execution.state_on_nvme:
            unused["execution"] = {"state_on_nvme"}
        return sha256_text(canonical_json(self, exclude=unused))

    @property
    def base_kept_bytes(self) -> int:
        """Return what all layers keep beyond their inputs at their first save level."""
        menus = [self.levels.get(kind, ()) for kind in self.layer_types]
        return sum(menu[0].kept_bytes for menu in menus if menu)

    @property
    def room_bytes(self) -> Budget:
        """Return what each tier has for boundaries: HBM less what every plan keeps."""
        left = max(0, self.budget_bytes.gpu - self.base_kept_bytes)
        return self.budget_bytes.model_copy(update={"gpu": left})

    @model_validator(mode="after")
    def _fixed_is_inside(self) -> Self:
        """Refuse fixed boundaries and edges outside 0..layers."""
        for i in self.fixed.gpu or ():
            if not 0 <= i <= self.layers:
                raise ValueError(f"fixed.gpu names boundary {i} of 0..{self.layers}")
        for start, end in self.fixed.edges or ():
            if not 0 <= start < end <= self.layers:
                raise ValueError(f"fixed.edges names ({start}, {end}), not an edge")
        return self

    @model_validator(mode="after")
    def _costs_match(self) -> Self:
        """Refuse per-layer costs of the wrong length."""
        for name in ("forward_s", "backward_s"):
            values = getattr(self.costs, name)
            if values and (len(values) != self.layers or min(values) < 0):
                raise ValueError(
                    f"costs.{name} needs layers = {self.layers} entries, none below 0"
                )
        return self

    @model_validator(mode="after")
    def _shapes(self) -> Self:
        """Refuse tuples of the wrong length and negative entries."""
        if len(self.boundary_bytes) != self.layers + 1:
            raise ValueError(
                f"boundary_bytes has {len(self.boundary_bytes)} entries, "
                f"needs layers + 1 = {self.layers + 1}"
            )
        per_layer = (
            "layer_types",
            "rho_s",
            "window_write_s",
            "window_read_s",
            "mandatory_d2h_bytes",
            "mandatory_h2d_bytes",
        )
        for name in per_layer:
            values = getattr(self, name)
            if len(values) != self.layers:
                raise ValueError(
                    f"{name} has {len(values)} entries, needs layers = {self.layers}"
                )
        for name in ("boundary_bytes", *per_layer[1:]):
            if min(getattr(self, name)) < 0:
                raise ValueError(f"{name} holds a negative entry")
        return self
