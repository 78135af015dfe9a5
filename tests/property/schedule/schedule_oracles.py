"""Independent truths for the planner: random instances, brute force, HiGHS.

Nothing here uses the package's program, placement or objective.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from lazytrain.schedule.instance import Bandwidth, Budget, Instance, Options

GPU, CPU, NVME, OMIT = range(4)
LETTER = "gcnr"


def random_instance(
    seed: int, layers: int, equal: bool = False, **changes: object
) -> Instance:
    """Return a small instance: sizes of tens, rates and windows that matter."""
    rng = np.random.default_rng(seed)
    high = 4 if rng.random() < 0.5 else 40
    sizes = rng.integers(1, high, layers + 1)
    if equal:
        sizes[:] = rng.integers(1, high)
    total = int(sizes.sum())
    tight = rng.uniform(0.1, 1.3)
    gpu = int(sizes[-1] + rng.uniform(0, 0.8) * tight * total)
    cpu, nvme = (int(rng.uniform(0, 0.7) * tight * total) for _ in range(2))
    if rng.random() < 0.2:
        cpu = 0
    if rng.random() < 0.2:
        nvme = 0
    pick = rng.choice([0.5, 1.0, 1.5], layers) if rng.random() < 0.5 else 1.0
    rho = pick * rng.uniform(0.1, 1.0) * (np.ones(layers) + 0.0)
    mean = float(sizes.mean())
    rates = mean * rng.uniform(0.2, 4.0, 4)
    load = rng.choice([0.0, 0.6, 1.4], p=[0.5, 0.3, 0.2])
    values: dict[str, object] = {
        "name": f"random-{seed}",
        "model": "random",
        "layers": layers,
        "layer_types": ("layer",) * layers,
        "boundary_bytes": tuple(int(a) for a in sizes),
        "rho_s": tuple(float(r) for r in rho),
        "window_write_s": tuple(float(t) for t in rng.uniform(0.1, 1.0, layers)),
        "window_read_s": tuple(float(t) for t in rng.uniform(0.1, 1.5, layers)),
        "mandatory_d2h_bytes": tuple(
            int(load * b) for b in rng.uniform(0, mean, layers)
        ),
        "mandatory_h2d_bytes": tuple(
            int(load * b) for b in rng.uniform(0, mean, layers)
        ),
        "bandwidth": Bandwidth(
            d2h=rates[0], h2d=rates[1], nvme_write=rates[2], nvme_read=rates[3]
        ),
        "budget_bytes": Budget(gpu=gpu, cpu=cpu, nvme=nvme),
        "lambda_z_s": 1e-4,
        "lambda_n_s": 1e-3,
        "lambda_c_s": float(rng.choice([0.0, 1e-4])),
    }
    return Instance.model_validate(values | changes)


@cache
def assignments(layers: int) -> np.ndarray:
    """Return every row of homes with both ends kept: shape (rows, layers + 1)."""
    choices = [range(3), *[range(4)] * (layers - 1), range(3)]
    return np.array(list(itertools.product(*choices)), dtype=np.int8)


def brute_force(instance: Instance) -> float:
    """Return the least objective over every schedule, infinite if there is none.

    Covers every deadline and option but gds.
    """
    rows = assignments(instance.layers)
    cost = _cost(instance, rows)
    cost[~_within_budgets(instance, rows)] = np.inf
    starts_write = np.broadcast_to(np.arange(instance.layers + 1), rows.shape)
    starts_read = _read_starts(instance, rows)
    moved = (rows == CPU) | (rows == NVME)
    links = (
        ("d2h", moved, starts_write, instance.window_write_s, "mandatory_d2h_bytes"),
        ("h2d", moved, starts_read, instance.window_read_s, "mandatory_h2d_bytes"),
        ("nvme_write", rows == NVME, starts_write, instance.window_write_s, None),
        ("nvme_read", rows == NVME, starts_read, instance.window_read_s, None),
    )
    for link, mask, starts, seconds, mandatory in links:
        needed = getattr(instance, mandatory) if mandatory else (0,) * instance.layers
        rate = getattr(instance.bandwidth, link)
        cost += _exposure(instance, mask, starts, rate, seconds, needed)
    return float(cost.min())


def _cost(instance: Instance, rows: np.ndarray) -> np.ndarray:
    rho = np.array([0.0, *instance.rho_s[:-1], 0.0])
    return (
        (rows == OMIT) @ rho
        + instance.lambda_z_s * (rows != OMIT).sum(1)
        + instance.lambda_c_s * (rows == CPU).sum(1)
        + instance.lambda_n_s * (rows == NVME).sum(1)
    )


def _within_budgets(instance: Instance, rows: np.ndarray) -> np.ndarray:
    size = np.array(instance.boundary_bytes)
    budget = instance.budget_bytes
    gpu = (rows == GPU) @ size
    run, widest, length, longest, alive, worst = (
        np.zeros(len(rows), int) for _ in range(6)
    )
    for i in range(rows.shape[1]):
        omitted = rows[:, i] == OMIT
        run = np.where(omitted, run + size[i], 0)
        length = np.where(omitted, length + 1, 0)
        widest, longest = np.maximum(widest, run), np.maximum(longest, length)
        alive = alive + np.where(rows[:, i] == GPU, size[i], 0)
        worst = np.maximum(worst, alive + run)
    if instance.options.transient and instance.options.memory == "profile":
        gpu = np.maximum(gpu, worst)
    elif instance.options.transient:
        gpu = gpu + widest
    good = gpu <= budget.gpu
    good &= (rows == CPU) @ size <= budget.cpu
    good &= (rows == NVME) @ size <= budget.nvme
    if instance.max_block:
        good &= longest + 1 <= instance.max_block
    return good


def _read_starts(instance: Instance, rows: np.ndarray) -> np.ndarray:
    index = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    deadline = instance.options.read_deadline
    if deadline == "paper":
        return index
    if deadline == "layer":
        return index + 1
    following = np.full(rows.shape, instance.layers)
    for i in range(instance.layers - 1, -1, -1):
        kept = rows[:, i + 1] != OMIT
        following[:, i] = np.where(kept, i + 1, following[:, i + 1])
    return following


def _exposure(
    instance: Instance,
    mask: np.ndarray,
    starts: np.ndarray,
    rate: float,
    seconds: tuple[float, ...],
    mandatory: tuple[int, ...],
) -> np.ndarray:
    size = np.array(instance.boundary_bytes)
    slack = np.maximum(0.0, rate * np.array(seconds) - np.array(mandatory))
    over = np.zeros(len(mask))
    for k in range(instance.layers):
        demand = (mask & (starts >= k)) @ size
        over = np.maximum(over, demand - slack[k:].sum())
    lost = (mask & (starts >= instance.layers)) @ size > 0
    return np.where(lost, np.inf, over / rate)


class Rows:
    """Columns and rows of a mixed-integer program for HiGHS, by name."""

    def __init__(self) -> None:
        self.columns: dict[tuple, int] = {}
        self.cost: list[float] = []
        self.integral: list[int] = []
        self.upper: list[float] = []
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, *name: object, cost: float = 0.0, binary: bool = False) -> None:
        self.columns[name] = len(self.columns)
        self.cost.append(cost)
        self.integral.append(int(binary))
        self.upper.append(1.0 if binary else np.inf)

    def row(self, terms: dict[tuple, float], low: float, high: float) -> None:
        for name, value in terms.items():
            if name in self.columns:
                entry = (len(self.low), self.columns[name], value)
                self.entries.append(entry)
        self.low.append(low)
        self.high.append(high)

    def solve(self) -> float:
        i, j, v = zip(*self.entries, strict=True)
        shape = (len(self.low), len(self.columns))
        matrix = coo_array((v, (i, j)), shape=shape).tocsr()
        result = milp(
            self.cost,
            integrality=self.integral,
            bounds=(0, np.array(self.upper)),
            constraints=LinearConstraint(matrix, self.low, self.high),
            options={"mip_rel_gap": 0.0},
        )
        if result.status == 2:
            return np.inf
        assert result.status == 0, result.message
        return float(result.fun)


def highs(instance: Instance) -> float:
    """Return the optimum of the printed program by HiGHS, infinite if infeasible."""
    rows = Rows()
    _columns(instance, rows)
    _structure(instance, rows)
    for link in ("d2h", "h2d", "nvme_write", "nvme_read"):
        _link(instance, rows, link)
    return rows.solve() + _constant(instance)


def _constant(instance: Instance) -> float:
    """Return minus the mandatory exposure, which the objective leaves out."""
    total = 0.0
    for link, windows in (
        ("d2h", instance.window_write_s),
        ("h2d", instance.window_read_s),
    ):
        rate = getattr(instance.bandwidth, link)
        needed = getattr(instance, f"mandatory_{link}_bytes")
        total -= sum(
            max(0.0, m - rate * t) / rate for m, t in zip(needed, windows, strict=True)
        )
    return total


def _columns(instance: Instance, rows: Rows) -> None:
    last, reach = instance.layers, instance.max_block or instance.layers
    for s in range(last):
        for e in range(s + 1, min(last, s + reach) + 1):
            cost = sum(instance.rho_s[s : e - 1])
            rows.column("x", s, e, cost=cost, binary=True)
    extra = (0.0, instance.lambda_c_s, instance.lambda_n_s)
    for i in range(last + 1):
        for home in range(3):
            cost = instance.lambda_z_s + extra[home]
            rows.column("home", home, i, cost=cost, binary=True)
    rows.column("theta")


def _structure(instance: Instance, rows: Rows) -> None:
    last = instance.layers
    edges = [name for name in rows.columns if name[0] == "x"]
    for i in range(last + 1):
        kept = {("home", home, i): -1.0 for home in range(3)}
        if i < last:
            rows.row(kept | {x: 1.0 for x in edges if x[1] == i}, 0, 0)
        if i > 0:
            rows.row(kept | {x: 1.0 for x in edges if x[2] == i}, 0, 0)
        if i in (0, last):
            rows.row({name: 1.0 for name in kept}, 1, 1)
    _memory(instance, rows, edges)


def _memory(instance: Instance, rows: Rows, edges: list[tuple]) -> None:
    size = instance.boundary_bytes
    for home, tier in enumerate(("gpu", "cpu", "nvme")):
        used: dict[tuple, float] = {
            ("home", home, i): float(a) for i, a in enumerate(size)
        }
        if home == GPU:
            used["theta",] = 1.0
        rows.row(used, -np.inf, getattr(instance.budget_bytes, tier) + 1e-4)
    if instance.options.transient:
        is_profile = instance.options.memory == "profile"
        for k in range(instance.layers):
            alive = {("home", GPU, i): float(size[i]) for i in range(k + 1)}
            block = {
                x: float(sum(size[x[1] + 1 : x[2]])) for x in edges if x[1] <= k < x[2]
            }
            if is_profile:
                limit = instance.budget_bytes.gpu + 1e-4
                rows.row(block | alive, -np.inf, limit)
            else:
                rows.row(block | {("theta",): -1.0}, -np.inf, 0)


def _link(instance: Instance, rows: Rows, link: str) -> None:
    last, size = instance.layers, instance.boundary_bytes
    is_write = link in ("d2h", "nvme_write")
    late = 0 if is_write or instance.options.read_deadline != "layer" else 1
    rate = getattr(instance.bandwidth, link)
    seconds = instance.window_write_s if is_write else instance.window_read_s
    needed = getattr(instance, f"mandatory_{link}_bytes", (0,) * last)
    homes = (CPU, NVME) if link in ("d2h", "h2d") else (NVME,)
    for w in range(last):
        rows.column("eps", link, w, cost=1 / rate)
        over = max(0.0, needed[w] - rate * seconds[w])
        rows.row({("eps", link, w): 1.0}, over, np.inf)
    for i in range(last + 1):
        windows = range(i + late, last)
        for w in windows:
            rows.column(link, i, w)
        total = {(link, i, w): 1.0 for w in windows}
        moved = {("home", home, i): -float(size[i]) for home in homes}
        rows.row(total | moved, 0, 0)
    for w in range(last):
        load = {(link, i, w): 1.0 for i in range(last + 1)}
        limit = rate * seconds[w] - needed[w]
        rows.row(load | {("eps", link, w): -1.0}, -np.inf, limit)
    if not is_write and instance.options.read_deadline == "block":
        _causal(instance, rows, link)
    if instance.options.nvme_coupling == "gds" and link.startswith("nvme"):
        other = "d2h" if is_write else "h2d"
        for name in [name for name in rows.columns if name[0] == link]:
            rows.row({name: 1.0, (other, *name[1:]): -1.0}, -np.inf, 0)


def _causal(instance: Instance, rows: Rows, link: str) -> None:
    for i in range(instance.layers + 1):
        for w in range(i, instance.layers):
            open_ = {
                name: -float(instance.boundary_bytes[i])
                for name in rows.columns
                if name[0] == "x" and name[1] == i and name[2] <= w
            }
            rows.row(open_ | {(link, i, w): 1.0}, -np.inf, 0)


OPTIONS = [
    Options(
        read_deadline=deadline,
        nvme_coupling=coupling,
        transient=transient,
        memory=memory,
    )
    for deadline in ("paper", "layer", "block")
    for coupling in ("independent", "gds")
    for transient, memory in ((False, "static"), (True, "static"), (True, "profile"))
]
