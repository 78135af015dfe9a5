"""What every system offers to the training loop, ours and the rivals alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from lazytrain.data.batches import Batch


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    ``loss`` is the mean over the batch's supervised tokens, before the update;
    ``grad_norm`` the global L2 norm before clipping; ``breakdown_s`` seconds by cause.
    """

    loss: float
    grad_norm: float | None
    skipped: bool = False
    breakdown_s: dict[str, float] = field(default_factory=dict)


class PendingStep(Protocol):
    """A launched step; reading its result waits for the device."""

    def result(self) -> StepResult:
        """Return the step's numbers, waiting for them if need be."""
        ...


@dataclass(frozen=True)
class Peaks:
    """Peak memory since the engine was made, in bytes; 0 where there is no GPU."""

    gpu_bytes: int
    host_bytes: int


class Engine(Protocol):
    """A system under test: one row of the run sheet runs through this."""

    num_parameters: int
    master: str
    optimizer_state: str
    kernel: str

    def train_step(self, batch: Batch, learning_rate: float) -> PendingStep:
        """Launch one optimizer step over the batch."""
        ...

    def evaluate_loss(self, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of supervised tokens."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield current weights by their Hugging Face names, on the host."""
        ...

    def drain(self) -> None:
        """Wait until every launched update has reached the weights."""
        ...

    def peaks(self) -> Peaks:
        """Return peak memory."""
        ...

    def close(self) -> None:
        """Release memory, threads and files."""
        ...
