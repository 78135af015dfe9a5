"""The loop launches ahead, reads in order, and times only what is complete."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from lazytrain.baselines.megatrain import MegaTrainEngine, MegaTrainOptions
from lazytrain.config import OptimizerSettings, Purpose, ScheduleSettings
from lazytrain.data.batches import Batch
from lazytrain.errors import InvalidInput
from lazytrain.executor.protocol import Peaks, StepResult
from lazytrain.models.scales import model_config
from lazytrain.train.loop import Loop, evaluate


def batch(seed=0, rows=2):
    ids = torch.randint(300, (rows, 8), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, ids.clone(), torch.full((rows,), 8))


def purpose(**changes):
    values = {"num_steps": 4, "warmup_steps": 1, "learning_rate": 0.1}
    return Purpose(**(values | changes))


@dataclass
class Traced:
    """An engine that writes down what is asked of it, and in which order."""

    losses: dict[int, float]
    num_parameters = 1
    master = optimizer_state = kernel = "none"

    def __post_init__(self):
        self.events = []
        self.count = 0

    def train_step(self, given, learning_rate):
        self.count += 1
        number = self.count
        self.events.append(f"launch {number}")
        engine = self

        class Pending:
            def result(self):
                engine.events.append(f"read {number}")
                loss = engine.losses.get(number, 1.0)
                return StepResult(loss, 2.0, skipped=not math.isfinite(loss))

        return Pending()

    def evaluate_loss(self, given):
        self.events.append("evaluate")
        return 6.0, 3

    def named_weights(self):
        yield from ()

    def drain(self):
        self.events.append("drain")

    def peaks(self):
        return Peaks(0, 0)

    def close(self):
        pass


def run(engine, settings, held_out=(), **options):
    seen = []
    loop = Loop(engine, settings, seen.append, held_out, **options)
    return loop.run(batch(n) for n in range(99)), seen


def test_a_step_is_read_after_the_next_is_launched():
    engine = Traced({})
    outcome, seen = run(engine, purpose())
    assert engine.events == [
        "launch 1",
        "read 1",
        "drain",
        "launch 2",
        "launch 3",
        "read 2",
        "launch 4",
        "read 3",
        "read 4",
        "drain",
    ]
    assert [record.step for record in seen] == [1, 2, 3, 4]
    assert outcome.timed is not None
    assert outcome.timed.num_steps == 3
    assert outcome.timed.padded_tokens == 3 * 16


def test_nothing_is_in_flight_when_the_loss_is_evaluated():
    engine = Traced({})
    settings = purpose(warmup_steps=0, eval_every=2)
    outcome, seen = run(engine, settings, [batch()])
    at = engine.events.index("evaluate")
    assert engine.events[at - 2 : at] == ["read 2", "drain"]
    assert [r.eval_loss for r in seen] == [None, 2.0, None, 2.0]
    assert outcome.eval_loss == 2.0


def test_non_finite_steps_are_counted_and_leave_valid_json():
    engine = Traced({2: math.nan, 3: math.inf})
    outcome, seen = run(engine, purpose(warmup_steps=0))
    assert outcome.skipped_steps == 2
    assert [r.skipped for r in seen] == [False, True, True, False]
    assert outcome.losses == [1.0, 1.0]
    assert all("nan" not in record.model_dump_json().lower() for record in seen)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(InvalidInput, match="warmup_steps"):
        Loop(Traced({}), purpose(warmup_steps=4), print)


def test_batches_that_end_early_are_an_error():
    loop = Loop(Traced({}), purpose(), lambda record: None)
    with pytest.raises(InvalidInput, match="after 2 steps"):
        loop.run([batch(), batch()])


def test_a_resumed_run_goes_on_with_its_number_and_rate():
    settings = purpose(warmup_steps=0, schedule=ScheduleSettings(kind="linear"))
    _, whole = run(Traced({}), settings)
    done = []
    _, rest = run(Traced({}), settings, first_step=2, after_step=done.append)
    assert [r.step for r in rest] == [3, 4]
    assert [r.learning_rate for r in rest] == [r.learning_rate for r in whole[2:]]
    assert done == [3, 4]


def test_evaluation_weighs_batches_by_their_labels():
    class Uneven(Traced):
        def evaluate_loss(self, given):
            return (8.0, 2) if given.input_ids.shape[0] == 1 else (4.0, 6)

    assert evaluate(Uneven({}), [batch(rows=1), batch(rows=2)]) == 12.0 / 8
    assert evaluate(Uneven({}), []) is None


def test_a_real_engine_learns_a_repeated_batch():
    config = model_config("3B-mini")
    config.num_hidden_layers = 2
    config.layer_types = config.layer_types[:2]
    engine = MegaTrainEngine(
        config,
        OptimizerSettings(),
        dtype=torch.float32,
        device=torch.device("cpu"),
        seed=0,
        options=MegaTrainOptions(interval=1),
    )
    settings = purpose(num_steps=6, learning_rate=1e-2)
    loop = Loop(engine, settings, lambda record: None, [batch()])
    outcome = loop.run([batch()] * 6)
    assert outcome.losses[-1] < outcome.losses[0] - 1
    assert outcome.eval_loss is not None
    assert outcome.eval_loss < outcome.losses[0]
    total = sum(record.step_s for record in outcome.steps)
    assert outcome.timed is not None
    assert outcome.timed.seconds < total
