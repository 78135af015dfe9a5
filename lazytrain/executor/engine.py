"""The streaming engine: a model that lives in host memory and trains on one device.

Host memory is the authority for weights and optimizer state; the device holds what the
plan says and nothing else. The numbers are those of plain autograd, clipping by global
norm, and AdamW on an fp32-exact master.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor

from lazytrain.config import OptimizerSettings
from lazytrain.data.batches import Batch
from lazytrain.errors import InvalidInput
from lazytrain.executor.consume import GradientFeed
from lazytrain.executor.evaluate import EvaluationRunner
from lazytrain.executor.itinerary import forward_visits, itinerary, step_visits
from lazytrain.executor.launched import LaunchedStep
from lazytrain.executor.loading import check_plan, fill_weights
from lazytrain.executor.machinery import Choices, HostBuffers, make_machinery
from lazytrain.executor.memory import (
    boundary_homes,
    device_memory_for,
    host_arena,
    sizes_of,
)
from lazytrain.executor.optimizer import HostOptimizer
from lazytrain.executor.protocol import Peaks, StepResult
from lazytrain.executor.step import Machinery, StepRunner, cut_waves, wave_rows
from lazytrain.executor.streams import Streams, Ticket
from lazytrain.executor.timeline import Timeline
from lazytrain.executor.updates import UpdateJob, UpdatePump
from lazytrain.models.decoder import Decoder
from lazytrain.models.families import check_family
from lazytrain.schedule.plan import Plan
from lazytrain.schedule.staging import UNIT_PARAMETERS
from lazytrain.tiers.deferred import DeferredTensor
from lazytrain.tiers.tier import Tier


@dataclass(frozen=True)
class EngineOptions:
    """Choices that change no number, only how faults show.

    Attributes:
        body: ``eager``, ``compile`` or ``liger``; None takes the plan's templates.
        instrument: Record where each step's time goes.
        poison: Fill released buffers with NaN.
        delay: Called before each copy, to slow it down.
        kernel: Optimizer kernel, as :class:`lazytrain.optim.adamw.HostAdamW` has it.
        attention: Attention backend of compiled bodies: ``cudnn``, ``flash`` or
            ``auto``. cuDNN's was the faster one on Hopper; where it cannot run, the
            next one does.
        unit_parameters: Most elements of optimizer state on NVMe that move as one.
    """

    body: str | None = None
    instrument: bool = True
    poison: bool = False
    delay: Any = None
    kernel: str = "auto"
    attention: str = "cudnn"
    unit_parameters: int = UNIT_PARAMETERS


class StreamingEngine:
    """Trains along a plan.

    Args:
        model_config: Hugging Face configuration of a causal language model.
        plan: What to do; refused if it was made for another shape.
        settings: Optimizer settings.
        dtype: Dtype of weights and hidden states: float32 or bfloat16.
        device: Where to compute.
        seed: Seed of the initial weights.
        state_dict: Weights by Hugging Face name; None initialises them.
        tier: Where NVMe boundaries and optimizer state go.
        options: See :class:`EngineOptions`.

    Raises:
        PlanMismatch: If plan and model differ.
        OutOfMemory: If host or pinned memory is too small.
    """

    def __init__(
        self,
        model_config: Any,
        plan: Plan,
        settings: OptimizerSettings,
        *,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
        state_dict: Mapping[str, Tensor] | None = None,
        tier: Tier | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        self.plan = plan
        self.decoder = Decoder(model_config)
        check_family(self.decoder)
        self._options = options or EngineOptions()
        check_plan(plan, self.decoder)
        self.num_parameters = self.decoder.num_parameters
        self._streams = Streams(device, self._options.delay)
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="homes")
        sizes = sizes_of(self.decoder, plan, dtype)
        self._sizes = sizes
        self._arena = host_arena(sizes, plan, pin=device.type == "cuda")
        self._host = self._buffers("weight")
        self._host_gradients = self._buffers("gradient")
        fill_weights(self.decoder, sizes.layouts, self._host, device, seed, state_dict)
        self._machinery = self._make_machinery(tier)
        self._feed = GradientFeed(
            self._streams,
            self._machinery.sums,
            self._host_gradients,
            list(self._buffers("consumed").values()),
        )
        self._optimizer = self._make_optimizer(settings, tier)
        self.master = self._optimizer.master
        self.optimizer_state = self._optimizer.state_format
        self.kernel = self._optimizer.kernel
        self._make_schedule(settings)

    def _buffers(self, kind: str) -> dict[str, Tensor]:
        """Return the arena's buffers of one kind, by part or number."""
        return self._arena.buffers(f"{kind} ", self._sizes.dtype)

    def _make_machinery(self, tier: Tier | None) -> Machinery:
        """Allocate what the plan holds on the device."""
        options = self._options
        with device_memory_for("allocating the plan's buffers"):
            return make_machinery(
                self.plan,
                self.decoder,
                self._sizes,
                self._streams,
                HostBuffers(self._host, self._host_gradients),
                boundary_homes(
                    self.plan,
                    self._sizes,
                    self._arena,
                    self._streams,
                    tier,
                    self._workers,
                ),
                Choices(options.body, options.attention, options.poison),
            )

    def _make_optimizer(
        self, settings: OptimizerSettings, tier: Tier | None
    ) -> HostOptimizer:
        """Allocate optimizer state where the plan wants it."""
        return HostOptimizer(
            self.plan,
            settings,
            self._sizes.layouts,
            self._host,
            self._feed,
            kernel=self._options.kernel,
            tier=tier,
            unit_parameters=self._options.unit_parameters,
            poison=self._options.poison,
        )

    def _make_schedule(self, settings: OptimizerSettings) -> None:
        """Fix the order of uploads and updates, and start the updating thread."""
        plan = self.plan
        ring = {"slots": plan.weight_slots, "distance": plan.prefetch_distance}
        visits = step_visits(plan, len(wave_rows(plan)))
        self._stops = itinerary(visits, self._sizes.resident, **ring)
        self._evaluation_stops = itinerary(
            forward_visits(plan.num_layers), self._sizes.resident, **ring
        )
        order = plan.update_order or tuple(self._sizes.layouts)
        self._pump = UpdatePump(
            self._optimizer, self._feed, order, settings.max_grad_norm, self._streams
        )
        self._gates: dict[str, Ticket] = {}
        self._end: Ticket | None = None
        self._numbers: Ticket | None = None
        self._last: LaunchedStep | None = None
        self._count = 0
        pin = self._streams.device.type == "cuda"
        count = self._machinery.sums.squares.numel()
        self._squares = torch.zeros(count, dtype=torch.float32, pin_memory=pin)
        self._loss_sum = torch.zeros((), dtype=torch.float64, pin_memory=pin)

    def train_step(self, batch: Batch, learning_rate: float) -> LaunchedStep:
        """Launch one optimizer step.

        Raises:
            InvalidInput: If the batch is not the plan's.
        """
        self._check_batch(batch)
        if batch.num_supervised == 0:
            nothing: Future[StepResult] = Future()
            nothing.set_result(StepResult(0.0, None, skipped=True))
            return LaunchedStep(nothing)
        name = f"step {self._count}"
        self._count += 1
        streams = self._streams
        timeline = Timeline(streams, is_on=self._options.instrument)
        with self._workers_end_with_us(), streams.on(streams.compute):
            if self._numbers is not None:
                # The loss of the step before must be read before it is cleared.
                self._numbers.wait_on(streams.compute)
            waves = cut_waves(
                self.plan, batch, self.decoder.hidden_size, streams.device
            )
            trip = self._machinery.weights.begin(
                name, self._stops, self._gates, self._end
            )
            runner = StepRunner(
                self._machinery, trip, name, timeline, 1.0 / batch.num_supervised
            )
            with device_memory_for(f"running {name}"):
                runner.run(waves)
            self._end = streams.ticket(f"{name} end")
            self._end.record(streams.compute)
            job = self._update_job(runner, batch, learning_rate, name)
        self._gates = dict(job.gates)
        self._last = LaunchedStep(job.result, timeline, streams)
        self._pump.submit(job)
        return self._last

    @contextlib.contextmanager
    def _workers_end_with_us(self) -> Iterator[None]:
        """Tell the workers of a failure here.

        They wait for points of the step that would never come, and closing waits for
        them. What was launched before has all its points and is finished.
        """
        try:
            yield
        except BaseException as error:
            self._streams.health.fail(error)
            raise

    def _update_job(
        self, runner: StepRunner, batch: Batch, learning_rate: float, name: str
    ) -> UpdateJob:
        """Send the square-sums and the loss down and describe the update."""
        streams, sums = self._streams, self._machinery.sums
        assert self._end is not None
        self._end.wait_on(streams.d2h)
        streams.copy(self._squares, sums.squares, streams.d2h, "squares")
        streams.copy(self._loss_sum, self._machinery.loss_sum, streams.d2h, "loss")
        numbers = streams.ticket(f"{name} numbers")
        numbers.record(streams.d2h)
        self._numbers = numbers
        gates = {p: streams.ticket(f"{name} update {p}") for p in self._sizes.layouts}
        return UpdateJob(
            learning_rate,
            self._squares,
            self._loss_sum,
            batch.num_supervised,
            numbers,
            runner.gradients,
            gates,
        )

    def evaluate_loss(self, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the supervised tokens; nothing is updated."""
        self.drain()
        streams = self._streams
        launching = self._workers_end_with_us()
        with launching, streams.on(streams.compute), torch.no_grad():
            trip = self._machinery.weights.begin(
                "evaluation", self._evaluation_stops, {}, self._end
            )
            runner = EvaluationRunner(self._machinery, trip)
            total = runner.run(batch)
            self._end = streams.ticket("evaluation end")
            self._end.record(streams.compute)
        # Outside the block a read waits for the default stream, not for this one.
        self._end.wait_done()
        return float(total), batch.num_supervised

    def drain(self) -> None:
        """Wait until every launched update has reached the host weights."""
        for gate in self._gates.values():
            gate.wait_done()
        self._streams.health.check()

    def measured_window_s(self) -> dict[str, float]:
        """Return the last step's measured compute seconds per window."""
        return self._last.window_s() if self._last is not None else {}

    def host_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the last step's unclipped gradients by Hugging Face name."""
        self._streams.synchronize()
        waiting = self._machinery.sums.waiting
        held = {name: tensor.cpu() for name, tensor in waiting.items()}
        yield from self._named(self._host_gradients | held)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield current weights by Hugging Face name, as host views."""
        self.drain()
        yield from self._named(self._host)

    @property
    def applied_steps(self) -> int:
        """Updates applied so far; skipped steps do not count."""
        return self._pump.applied_steps

    def optimizer_tensors(self) -> dict[str, Tensor | DeferredTensor]:
        """Return all optimizer state as ``part/name``: host views, or what reads it."""
        self.drain()
        return self._optimizer.tensors()

    def load_training_state(
        self,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        applied_steps: int,
    ) -> None:
        """Continue from saved weights (by Hugging Face name) and optimizer state.

        The plan may be another one: state is kept per part, not per plan.

        Raises:
            InvalidInput: If something is missing or was saved in another format.
        """
        self.drain()
        cpu = torch.device("cpu")
        fill_weights(self.decoder, self._sizes.layouts, self._host, cpu, 0, weights)
        self._optimizer.load(optimizer)
        self._pump.applied_steps = applied_steps

    def _named(self, buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for part in self.decoder.parts:
            views = self._sizes.layouts[part.name].named_views(buffers[part.name])
            for name, view in views.items():
                yield part.prefix + name, view

    def peaks(self) -> Peaks:
        """Return peak reserved device memory and peak resident host memory."""
        device = self._streams.device
        gpu = 0
        if device.type == "cuda":
            gpu = torch.cuda.max_memory_reserved(device)
        return Peaks(gpu, int(psutil.Process().memory_info().rss))

    def close(self) -> None:
        """Finish updates, stop threads and release pinned memory."""
        self._pump.close()
        self._machinery.weights.close()
        self._workers.shutdown(wait=True)
        self._streams.synchronize()
        self._arena.close()

    def _check_batch(self, batch: Batch) -> None:
        rows, tokens = batch.input_ids.shape
        if rows != self.plan.batch:
            raise InvalidInput("batch", rows, f"the plan is for {self.plan.batch}")
        if tokens > self.plan.seq_len:
            limit = self.plan.seq_len
            raise InvalidInput("seq_len", tokens, f"the plan is for at most {limit}")
