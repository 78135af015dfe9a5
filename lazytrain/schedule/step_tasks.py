"""One optimizer step of a plan as tasks of a timeline.

Links carry weights and gradients ahead of activations, activations go in chunks, a
layer's weights arrive at most ``prefetch_distance`` visits early, and a boundary is
read at most ``read_ahead_blocks`` blocks early. Updates begin once every gradient is
down (the global norm is known then), in the plan's order, and the next step's uploads
wait for them part by part. A batch-major step does all of this compute once per wave;
gradients are whole, and go down, in the last wave.
"""

from __future__ import annotations

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.plan import Block, Home, Plan
from lazytrain.schedule.state_tasks import StateTasks
from lazytrain.schedule.step_marks import StepMarks, amounts
from lazytrain.schedule.timeline import Timeline

FIRST, LAST = 0, 1


class StepBuilder:
    """Adds the tasks of one step after another."""

    def __init__(self, plan: Plan, instance: Instance, line: Timeline) -> None:
        self._plan = plan
        self._instance = instance
        self._line = line
        self._amounts = amounts(plan, instance)
        self._step = 0
        self._visits: list[int] = []
        self._previous_layer: int | None = None
        self._upload: int | None = None
        self._marks = StepMarks()
        self._before = StepMarks()
        self._last: int | None = None
        self._state = StateTasks(plan, instance, line)

    def add_step(self) -> StepMarks:
        """Add one step and return its marks."""
        self._before, self._marks = self._marks, StepMarks()
        self._previous_layer = None
        self._drains: list[int | None] = []
        for wave in range(self._amounts.waves):
            if wave > 0:
                self._next_wave()
            self._is_last_wave = wave == self._amounts.waves - 1
            self._forward()
            self._turn()
            for order, block in enumerate(reversed(self._plan.blocks)):
                self._block(block, order)
            self._embedding_backward()
        self._finish()
        self._step += 1
        return self._marks

    def _next_wave(self) -> None:
        """Set the marks of the wave before aside; weights are fresh once a step."""
        done, self._marks = self._marks, StepMarks()
        self._marks.earlier, done.earlier = [*done.earlier, done], []
        self._marks.updates = done.updates

    def _task(
        self,
        name: str,
        resource: str,
        seconds: float,
        after: tuple[int | None, ...],
        priority: int = FIRST,
    ) -> int:
        """Add a task of the current step."""
        return self._line.add(name, resource, seconds, after, priority, self._step)

    def _compute(self, name: str, seconds: float, *after: int | None) -> int:
        """Add compute behind all compute before it."""
        self._last = self._task(name, "compute", seconds, (self._last, *after))
        return self._last

    def _move(self, name: str, link: str, size: int, *after: int | None) -> int:
        """Add a copy of weights or gradients in one piece."""
        rate: float = getattr(self._instance.bandwidth, link)
        return self._task(name, link, size / rate, after)

    def _visit(self, layer: int) -> int | None:
        """Bring a layer's weights; return the upload that its compute waits for."""
        name = f"layer.{layer}"
        size = self._amounts.weight_bytes.get(name, 0)
        update = self._before.updates.get(name)
        ahead = self._plan.prefetch_distance + 1
        freed = self._visits[-ahead] if len(self._visits) >= ahead else None
        if name not in self._amounts.streamed:
            return self._refresh(name, freed)
        if layer == self._previous_layer or size == 0:
            return update if size == 0 else self._upload
        self._previous_layer = layer
        self._upload = self._move(f"weights {layer}", "h2d", size, freed, update)
        return self._upload

    def _refresh(self, name: str, freed: int | None = None) -> int | None:
        """Send a resident part once per step, after its update."""
        key = f"{name}@{self._step}"
        if key not in self._marks.updates:
            update = self._before.updates.get(name)
            size = self._amounts.weight_bytes.get(name, 0)
            if update is None or size == 0:
                return update
            self._marks.updates[key] = self._move(
                f"weights {name}", "h2d", size, update, freed
            )
        return self._marks.updates[key]

    def _forward(self) -> None:
        """Add embedding and all layers; write boundaries that leave the device."""
        ready = self._refresh("embedding")
        # Half of the embedding's measured time is its backward.
        half = self._amounts.embedding_s / 2
        self._boundary(0, self._compute("embedding", half, ready))
        for j in range(self._instance.layers):
            upload = self._visit(j)
            done = self._compute(f"forward {j}", self._amounts.forward_s[j], upload)
            self._visits.append(done)
            self._boundary(j + 1, done)

    def _boundary(self, i: int, made: int) -> None:
        """Send a boundary to its home."""
        self._marks.made[i] = made
        home = self._plan.homes[i]
        if home not in (Home.CPU, Home.NVME):
            return
        size = self._instance.boundary_bytes[i]
        _, self._marks.written[i] = self._chunks(f"write {i}", "d2h", size, made)
        if home == Home.NVME:
            after = self._marks.written[i]
            if self._instance.options.nvme_coupling == "gds":
                after = made
            _, end = self._chunks(f"spill {i}", "nvme_write", size, after)
            self._marks.written[i] = end

    def _chunks(
        self, name: str, link: str, size: int, *after: int | None
    ) -> tuple[int, int]:
        """Add an activation copy in chunks; return its first and last task."""
        rate: float = getattr(self._instance.bandwidth, link)
        pieces = max(1, -(-size // self._plan.chunk_bytes))
        first = last = self._task(name, link, size / rate / pieces, after, LAST)
        for _ in range(pieces - 1):
            last = self._task(name, link, size / rate / pieces, (last,), LAST)
        return first, last

    def _turn(self) -> None:
        """Add head and loss; the head's gradient goes down behind it."""
        self._turn_starts = self._last
        ready = self._refresh("head")
        done = self._compute("loss", self._amounts.turn_s, ready)
        self._marks.loss = done
        self._drain("head", done)
        self._starts: list[int | None] = []

    def _drain(self, name: str, after: int) -> None:
        """Send a part's gradient down once whole, unless it waits for its update."""
        if not self._is_last_wave:
            return
        size = self._amounts.gradient_bytes.get(name, 0)
        if name not in self._amounts.waiting and size:
            after = self._move(f"gradient {name}", "d2h", size, after)
        self._drains.append(after)

    def _block(self, block: Block, order: int) -> None:
        """Read the block's boundary, recompute what it omits, go back through it."""
        read = self._read(block.start, order)
        self._starts.append(self._last)
        replayed = range(block.start, block.end - 1)
        if block.mode == "fused":
            replayed = range(block.start, block.end)
        again: dict[int, int] = {}
        for j in replayed:
            name, seconds = f"replay {j}", self._amounts.forward_s[j]
            again[j + 1] = self._compute(name, seconds, self._visit(j), read)
            self._visits.append(again[j + 1])
        for j in reversed(range(block.start, block.end)):
            seconds = self._amounts.backward_s[j]
            if block.mode == "fused":
                seconds = max(0.0, seconds - self._amounts.forward_s[j])
            done = self._compute(f"backward {j}", seconds, self._visit(j), read)
            self._visits.append(done)
            self._drain(f"layer.{j}", done)
            if j in again:
                self._marks.remade.append((j, again[j], done))
        self._marks.block_end[block.start] = self._visits[-1]

    def _read(self, i: int, order: int) -> int | None:
        """Bring a boundary back, a few blocks ahead."""
        if i not in self._marks.written:
            return None
        ahead = order - self._plan.read_ahead_blocks
        gate = self._starts[ahead] if ahead >= 0 else self._turn_starts
        size, after = self._instance.boundary_bytes[i], self._marks.written[i]
        if self._plan.homes[i] == Home.NVME:
            first, after = self._chunks(f"load {i}", "nvme_read", size, after, gate)
        first, last = self._chunks(f"read {i}", "h2d", size, after, gate)
        self._marks.read_from[i] = first
        return last

    def _embedding_backward(self) -> None:
        """Add the end of a wave's backward."""
        half = self._amounts.embedding_s / 2
        self._drain("embedding", self._compute("embedding backward", half))

    def _finish(self) -> None:
        """Add updates once every gradient is down."""
        clip = self._task("clip", "optimizer", 0.0, tuple(self._drains))
        rate = self._instance.costs.optimizer_parameters_per_s
        names = self._plan.update_order or tuple(self._amounts.weight_bytes)
        for name in names:
            count = self._amounts.parameters.get(name, 0)
            seconds = count / rate if rate else 0.0
            ready = clip
            if name in self._amounts.waiting:
                size = self._amounts.gradient_bytes[name]
                ready = self._move(f"consume {name}", "d2h", size, clip)
            self._marks.updates[name] = self._state.update(
                name, count, seconds, ready, self._step
            )
        self._marks.end = clip
