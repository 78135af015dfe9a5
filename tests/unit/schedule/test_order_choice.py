"""Which order and waves win by how much, and which entry points ask for the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lazytrain import records
from lazytrain.commands.schedule import app
from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import NoSchedule
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.heuristics import keep_all, recompute_all
from lazytrain.schedule.instance import Budget, Costs, Execution, Instance, LevelCost
from lazytrain.schedule.order import Candidate, Choice, instance_for
from lazytrain.schedule.plan import Home, Plan, Prediction
from lazytrain.schedule.predict import predict
from lazytrain.schedule.simulate import simulate
from lazytrain.schedule.solve import solve

Maker = Callable[..., Instance]
RowMaker = Callable[..., RunRow]
ConfigMaker = Callable[..., PipelineConfig]


def ordered(config: PipelineConfig, order: str, tokens: int) -> PipelineConfig:
    """Return the configuration with an order and a micro-batch."""
    settings = config.accelerators["cpu"]
    changes = {"order": order, "micro_batch_tokens": tokens}
    executor = settings.executor.model_copy(update=changes)
    settings = settings.model_copy(update={"executor": executor})
    return config.model_copy(update={"accelerators": {"cpu": settings}})


@dataclass
class Tried:
    """Candidates by wave (0: layer-major), and the waves that were asked for."""

    known: Mapping[int, Candidate]
    asked: list[int] = field(default_factory=list)

    def candidate(self, order: str, rows: int | None = None) -> Candidate:
        """Return what stands for solving an order."""
        wave = 0 if order == "layer-major" else (rows or 0)
        self.asked.append(wave)
        if wave not in self.known:
            raise NoSchedule(f"{order} {rows}")
        return self.known[wave]


@pytest.fixture
def make_candidate(make_instance: Maker) -> Callable[..., Candidate]:
    """Return a maker of candidates that recompute layers and take given seconds."""

    def make(rows: int, step_s: float, *, keeps: bool = False) -> Candidate:
        run = Execution(
            batch=32,
            seq_len=1024,
            micro_batch=rows or 32,
            order="batch-major" if rows else "layer-major",
            resident_weights=rows > 0,
        )
        room = Budget(gpu=10_000, cpu=0, nvme=0)
        instance = make_instance(execution=run, budget_bytes=room)
        plan = keep_all(instance) if keeps else recompute_all(instance)
        seen = Prediction(step_s=step_s, exposed_s={}, peak_bytes={}, window_s={})
        return Candidate(instance, plan.model_copy(update={"prediction": seen}))

    return make


@pytest.fixture
def choose(
    monkeypatch: pytest.MonkeyPatch,
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> Callable[..., tuple[Instance, list[int]]]:
    """Return a function that chooses among candidates: what it takes, what it asked."""

    def among(
        order: str, *candidates: Candidate, seq_len: int = 1024
    ) -> tuple[Instance, list[int]]:
        runs = [c.instance.execution for c in candidates]
        waves = [
            run.micro_batch if run and run.order == "batch-major" else 0 for run in runs
        ]
        tried = Tried(dict(zip(waves, candidates, strict=True)))

        def candidate(_: Choice, order: str, rows: int | None = None) -> Candidate:
            return tried.candidate(order, rows)

        monkeypatch.setattr(Choice, "candidate", candidate)
        row = make_row().model_copy(update={"seq_len": seq_len})
        config = ordered(make_config(), order, 32 * seq_len)
        return instance_for(hardware, layers, row, config), tried.asked

    return among


def rows_of(instance: Instance) -> int:
    """Return the sequences of a wave."""
    assert instance.execution is not None
    return instance.execution.micro_batch


def order_of(instance: Instance) -> str:
    """Return the order of an instance's step."""
    assert instance.execution is not None
    return instance.execution.order


Make = Callable[..., Candidate]
Choose = Callable[..., tuple[Instance, list[int]]]


def test_waves_below_the_least_tokens_are_not_tried(
    make_candidate: Make, choose: Choose
) -> None:
    steps = {32: 10.0, 16: 9.0, 8: 8.0, 4: 2.0, 2: 1.0, 1: 0.5}
    options = [make_candidate(rows, step_s) for rows, step_s in steps.items()]
    chosen, asked = choose("batch-major", *options)
    # 8 sequences of 1024 tokens are just enough.
    assert (rows_of(chosen), asked) == (8, [32, 16, 8])
    # At half the length, 16 sequences are.
    chosen, asked = choose("batch-major", *options, seq_len=512)
    assert (rows_of(chosen), asked) == (16, [32, 16])
    # The first that fits is taken where no larger one does, and no smaller one tried.
    chosen, asked = choose("batch-major", *options[3:])
    assert (rows_of(chosen), asked) == (4, [32, 16, 8, 4])


@pytest.mark.parametrize(
    ("step_s", "rows"),
    [
        (10.1, 32),
        (10.0, 32),
        (10.0 * (1 - 0.0005), 32),
        (10.0 * (1 - 0.001), 32),
        (10.0 * (1 - 0.002), 16),
        (9.0, 16),
    ],
)
def test_smaller_waves_win_by_more_than_a_thousandth(
    make_candidate: Make, choose: Choose, step_s: float, rows: int
) -> None:
    larger, smaller = make_candidate(32, 10.0), make_candidate(16, step_s)
    chosen, asked = choose("batch-major", larger, smaller)
    assert asked == [32, 16, 8]
    assert rows_of(chosen) == rows


def test_each_gain_is_measured_against_the_best_so_far(
    make_candidate: Make, choose: Choose
) -> None:
    # 8 gains less than a thousandth on 16, but more on 32.
    steps = {32: 10.0, 16: 9.995, 8: 9.988}
    options = [make_candidate(rows, step_s) for rows, step_s in steps.items()]
    assert rows_of(choose("batch-major", *options)[0]) == 8
    steps = {32: 10.0, 16: 9.98, 8: 9.975}
    options = [make_candidate(rows, step_s) for rows, step_s in steps.items()]
    assert rows_of(choose("batch-major", *options)[0]) == 16


@pytest.mark.parametrize(
    ("step_s", "order"),
    [
        (10.5, "layer-major"),
        (10.0, "layer-major"),
        (10.0 * (1 - 0.005), "layer-major"),
        (10.0 * (1 - 0.01), "layer-major"),
        (10.0 * (1 - 0.02), "batch-major"),
        (8.0, "batch-major"),
    ],
)
def test_equal_and_nearly_equal_orders_stay_layer_major(
    make_candidate: Make, choose: Choose, step_s: float, order: str
) -> None:
    whole, waves = make_candidate(0, 10.0), make_candidate(16, step_s)
    chosen, asked = choose("auto", whole, waves)
    assert {0, 16} <= set(asked)
    assert order_of(chosen) == order
    # Both are named, whichever is taken.
    assert chosen.chosen.startswith(order)
    assert "layer-major: 10.000 s" in chosen.chosen
    assert f"2 waves of 16 sequences: {step_s:.3f} s" in chosen.chosen


def test_without_a_menu_only_recomputed_layers_say_that_waves_are_too_large(
    make_candidate: Make, choose: Choose
) -> None:
    large, small = make_candidate(32, 10.0), make_candidate(16, 8.0, keeps=True)
    assert large.instance.levels == {}
    assert Home.RECOMPUTE in large.plan.homes
    assert not large.recomputes_nothing
    assert small.recomputes_nothing
    chosen, asked = choose("batch-major", large, small, make_candidate(8, 1.0))
    # Waves that keep everything end the search.
    assert (rows_of(chosen), asked) == (16, [32, 16])


@pytest.mark.parametrize("keeps", [True, False])
def test_the_fullest_level_does_not_hide_recomputed_layers(
    make_candidate: Make, keeps: bool
) -> None:
    bare = make_candidate(16, 1.0, keeps=keeps)
    menu = tuple(
        LevelCost(name=name, kept_bytes=0, step_s=step_s)
        for name, step_s in (("inputs", 2.0), ("all", 1.0))
    )
    instance = bare.instance.model_copy(update={"levels": {"layer": menu}})

    def at(*levels: str) -> Candidate:
        group = bare.plan.groups[0].model_copy(update={"save_level": levels})
        return Candidate(instance, bare.plan.model_copy(update={"groups": (group,)}))

    assert at(*["all"] * 6).recomputes_nothing is keeps
    assert not at("inputs", *["all"] * 5).recomputes_nothing


@pytest.fixture
def slow_link(hardware: HardwareProfile) -> HardwareProfile:
    """Return a machine on which weights that stay are worth most."""
    link = hardware.link.model_copy(update={"h2d_together": 1e6})
    return hardware.model_copy(update={"link": link})


@pytest.mark.parametrize("order", ["auto", "batch-major"])
def test_the_instance_command_writes_the_chosen_order(
    order: str,
    tmp_path: Path,
    slow_link: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    config = ordered(make_config("256MiB"), order, 1024)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump()))
    fields = make_row().model_dump(mode="json", exclude_defaults=True)
    table = ("\t".join(map(str, line)) for line in (fields.keys(), fields.values()))
    (tmp_path / "runs.tsv").write_text("\n".join(table) + "\n")
    records.write(slow_link, tmp_path / "hardware.json")
    records.write(layers, tmp_path / "layers.json")
    out = tmp_path / "instance.json"
    words = ["instance", "--accelerator", "cpu", "--scale", "27B"]
    words += ["--system", "lazytrain", "--out", str(out)]
    for name in ("hardware.json", "layers.json", "config.yaml", "runs.tsv"):
        words += [f"--{Path(name).stem}", str(tmp_path / name)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    written = records.read(Instance, out)
    assert order_of(written) == "batch-major"
    assert written.chosen.startswith("batch-major in ")
    assert written.chosen in result.stderr
    assert ("; layer-major: " in written.chosen) is (order == "auto")


def test_a_prediction_is_that_of_the_faster_order(
    slow_link: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    def seconds(order: str) -> float:
        config = ordered(make_config("256MiB"), order, 1024)
        expected = predict(slow_link, layers, make_row(), config)
        assert expected is not None
        assert expected.step_s is not None
        return expected.step_s

    assert seconds("auto") == seconds("batch-major") < 0.9 * seconds("layer-major")


def test_a_prediction_is_made_in_waves_that_fit(
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    # The configured micro-batch is the whole batch, whose activations do not fit.
    config = ordered(make_config("40MiB"), "batch-major", 32 * 128)
    row = make_row()
    expected = predict(hardware, layers, row, config)
    assert expected is not None
    asked = derive_instance(hardware, layers, row, config)
    chosen = instance_for(hardware, layers, row, config)
    assert rows_of(chosen) < rows_of(asked) == 32
    seen = solve(chosen).prediction
    assert seen is not None
    assert expected.step_s == seen.step_s


@pytest.fixture
def three_waves(make_instance: Maker) -> Instance:
    """Return two layers in three waves; compute only, so that nothing waits.

    The loss takes 1 s a wave, for which the last boundary is held too.
    """
    run = Execution(
        batch=6, seq_len=1, micro_batch=2, order="batch-major", resident_weights=True
    )
    room = Budget(gpu=300, cpu=0, nvme=0)
    costs = Costs(turn_s=3.0)
    return make_instance(layers=2, budget_bytes=room, costs=costs, execution=run)


def highs(curve: list[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Yield when a curve is at its highest level: (from, to) in seconds."""
    top = max(level for _, level in curve)
    for (since, level), (until, _) in pairwise(curve):
        if level == top and until > since:
            yield since, until


@pytest.mark.parametrize(
    ("method", "peak_bytes"), [(keep_all, 300), (recompute_all, 200)]
)
def test_every_wave_fills_the_device_as_high(
    three_waves: Instance,
    method: Callable[[Instance], Plan],
    peak_bytes: int,
) -> None:
    result = simulate(method(three_waves), three_waves)
    curve = result.memory["gpu"]
    assert result.peak_bytes["gpu"] == peak_bytes
    # Each third of the step reaches the peak; between waves nothing is alive.
    third = result.step_s / 3
    peaks = list(highs(curve))
    assert {int(since // third) for since, _ in peaks} == {0, 1, 2}
    levels = [level for _, level in curve]
    assert levels[-1] == 0
    # Each of three boundaries is held once a wave.
    risen = sum(max(0, after - before) for before, after in pairwise(levels))
    assert risen == 3 * 3 * 100
