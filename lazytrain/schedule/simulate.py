"""What one step of a plan takes, what it waits for, and how full each tier gets.

A few consecutive steps are laid out; the last two differ by the steady step time, with
updates overlapping the next forward as they do in a real run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from lazytrain.schedule.instance import Instance
from lazytrain.schedule.memory import planned_bytes
from lazytrain.schedule.memory_curve import memory_curves
from lazytrain.schedule.plan import Plan, Prediction
from lazytrain.schedule.step_tasks import StepBuilder
from lazytrain.schedule.timeline import Task, Timeline

STEPS = 3
# A disk that lags behind the updates takes a few steps to show its whole time.
STREAMED_STEPS = 8
RESOURCES = (
    "compute",
    "h2d",
    "d2h",
    "nvme_read",
    "nvme_write",
    "nvme_state",
    "optimizer",
)


@dataclass(frozen=True)
class Simulation:
    """One steady step; times are seconds from its begin.

    ``exposed_s`` is how long compute stood still, by the resource it waited for;
    ``busy_s`` how long each resource worked. ``memory`` holds (time, bytes) per tier.
    """

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]
    busy_s: dict[str, float]
    memory: dict[str, list[tuple[float, int]]]
    tasks: tuple[Task, ...]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest level of each tier."""
        return {
            tier: max(size for _, size in curve) for tier, curve in self.memory.items()
        }

    @property
    def prediction(self) -> Prediction:
        """The figures a plan carries."""
        exposed = {name: seconds for name, seconds in self.exposed_s.items() if seconds}
        return Prediction(
            step_s=self.step_s,
            exposed_s=exposed,
            peak_bytes=self.peak_bytes,
            window_s=_windows(self.tasks),
        )


def _windows(tasks: tuple[Task, ...]) -> dict[str, float]:
    """Return a step's compute seconds by name, all waves together."""
    windows: dict[str, float] = {}
    steps: dict[str, int] = {}
    for task in tasks:
        if task.resource != "compute":
            continue
        # A step's first compute may lie within the step before.
        other = steps.setdefault(task.name, task.step) != task.step
        before = 0.0 if other else windows.get(task.name, 0.0)
        windows[task.name] = before + task.seconds
        steps[task.name] = task.step
    return windows


def simulate(plan: Plan, instance: Instance) -> Simulation:
    """Return the steady step of a plan under an instance's rates and times."""
    line = Timeline()
    builder = StepBuilder(plan, instance, line)
    streams = any(part.optimizer_state.home == "nvme" for part in plan.parts)
    steps = STREAMED_STEPS if streams else STEPS
    marks = [builder.add_step() for _ in range(steps)]
    line.run()
    begin = line.tasks[marks[-2].end].end_s
    end = line.tasks[marks[-1].end].end_s
    inside = [task for task in line.tasks if task.end_s > begin and task.start_s < end]
    return Simulation(
        step_s=end - begin,
        compute_s=_busy(inside, begin, end)["compute"],
        exposed_s=_exposed(line, begin, end),
        busy_s=_busy(inside, begin, end),
        memory=memory_curves(plan, instance, line, marks[-1], begin),
        tasks=tuple(_shifted(task, begin) for task in inside if task.end_s <= end),
    )


def timed_step_s(plan: Plan, instance: Instance, steps: int) -> float:
    """Return the mean of steps that are timed from rest to rest, as a row's are.

    Nothing is in flight when the first one begins, and the last one is over when its
    update is: one update that no forward hides.
    """
    line = Timeline()
    builder = StepBuilder(plan, instance, line)
    for _ in range(steps):
        builder.add_step()
    line.run()
    return max(task.end_s for task in line.tasks) / steps


def with_prediction(plan: Plan, instance: Instance) -> Plan:
    """Return the plan with its best read-ahead and what is then to be expected.

    Reading earlier hides slow tiers but holds boundaries in HBM for longer, so a longer
    read-ahead is taken only if it is faster and the peak stays within the budget.
    """
    best = simulate(plan, instance)
    limit = max(_gpu_peak(plan, instance, best), _gpu_limit(instance))
    for ahead in READ_AHEAD:
        if ahead > len(plan.blocks) or not any(best.exposed_s.values()):
            break
        trial = plan.model_copy(update={"read_ahead_blocks": ahead})
        other = simulate(trial, instance)
        faster = other.step_s < best.step_s * (1 - WORTH)
        if faster and _gpu_peak(trial, instance, other) <= limit:
            plan, best = trial, other
    prediction = best.prediction
    if _is_derived(instance):
        peaks = {"peak_bytes": planned_bytes(plan, instance)}
        prediction = prediction.model_copy(update=peaks)
    return plan.model_copy(update={"prediction": prediction})


def _is_derived(instance: Instance) -> bool:
    """Whether the executor's fixed allocations are part of the instance."""
    return instance.fixed_bytes.gpu > 0


def _gpu_peak(plan: Plan, instance: Instance, result: Simulation) -> int:
    """Return the HBM peak: what is allocated for real, else what is alive at once."""
    if _is_derived(instance):
        return planned_bytes(plan, instance)["gpu"]
    return result.peak_bytes["gpu"]


# Longer read-aheads to try, and the relative gain below which the shorter one stays.
READ_AHEAD = (4, 8, 16, 32)
WORTH = 1e-3


def _gpu_limit(instance: Instance) -> int:
    """Return HBM that boundaries and everything fixed may take together."""
    reserve = instance.execution.reserve_bytes if instance.execution else 0
    return instance.fixed_bytes.gpu + instance.budget_bytes.gpu - reserve


def _shifted(task: Task, begin: float) -> Task:
    """Return a task with times counted from the step's begin."""
    return Task(
        task.name,
        task.resource,
        task.seconds,
        task.after,
        task.priority,
        task.step,
        task.start_s - begin,
        task.end_s - begin,
        task.ready_s - begin,
    )


def _busy(tasks: list[Task], begin: float, end: float) -> dict[str, float]:
    """Add up working seconds per resource within the step."""
    busy = dict.fromkeys(RESOURCES, 0.0)
    for task in tasks:
        busy[task.resource] += min(task.end_s, end) - max(task.start_s, begin)
    return busy


def _exposed(line: Timeline, begin: float, end: float) -> dict[str, float]:
    """Attribute each wait of compute to the resources it waited for."""
    exposed: dict[str, float] = defaultdict(float)
    free = 0.0
    for task in line.tasks:
        if task.resource != "compute":
            continue
        if task.start_s > max(free, begin) and task.start_s <= end:
            _blame(line, task, max(free, begin), task.start_s, exposed)
        free = task.end_s
        if free > end:
            break
    if end > free:
        exposed["d2h"] += end - free
    return dict(exposed)


def _blame(
    line: Timeline, task: Task, low: float, high: float, exposed: dict[str, float]
) -> None:
    """Follow what a task waited for back in time, from ``high`` down to ``low``."""
    while high > low and task.after:
        task = line.tasks[max(task.after, key=lambda i: line.tasks[i].end_s)]
        # Time in the resource's queue is that resource's too.
        since = max(low, task.ready_s)
        if task.resource != "compute" and high > since:
            exposed[task.resource] += high - since
        high = min(high, since)
