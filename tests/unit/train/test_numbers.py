"""Learning rates and throughput readings."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from lazytrain.config import ScheduleSettings
from lazytrain.records import StepRecord
from lazytrain.train.measure import Outcome, mean_breakdown_s, reading
from lazytrain.train.schedule_lr import learning_rate


def rates(kind, num_steps=10, warmup=0.0, ratio=0.0):
    settings = ScheduleSettings(kind=kind, warmup_fraction=warmup, min_ratio=ratio)
    return [learning_rate(s, num_steps, 2.0, settings) for s in range(num_steps)]


def test_constant_stays_at_the_peak():
    assert rates("constant") == [2.0] * 10


def test_warm_up_rises_evenly_and_reaches_the_peak():
    assert rates("constant", warmup=0.4)[:5] == pytest.approx([0.5, 1, 1.5, 2, 2])


def test_linear_falls_evenly_to_the_least_ratio():
    found = rates("linear", ratio=0.1)
    assert found[0] == 2.0
    assert found[-1] == pytest.approx(0.2)
    gaps = [a - b for a, b in pairwise(found)]
    assert max(gaps) == pytest.approx(min(gaps))


def test_cosine_is_half_way_in_the_middle():
    found = rates("cosine", num_steps=11)
    assert found[0] == 2.0
    assert found[5] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.0, abs=1e-12)
    assert found[2] == pytest.approx(1 + math.cos(math.pi * 0.2))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_short_runs_have_positive_first_rates(kind, num_steps):
    assert rates(kind, num_steps)[0] == 2.0


def step(number, skipped=False, **laps):
    return StepRecord(
        step=number,
        loss=float(number),
        grad_norm=1.0,
        learning_rate=0.1,
        step_s=1.0,
        real_tokens=10,
        padded_tokens=16,
        supervised_tokens=4,
        skipped=skipped,
        breakdown_s=laps,
    )


def test_a_reading_counts_real_and_padded_tokens_apart():
    found = reading([step(1), step(2)], seconds=4.0)
    assert found.tokens_per_s == 5.0
    assert found.padded_tokens_per_s == 8.0
    assert found.step_s == 2.0
    # 6 N tokens/s: 6 * 1e12 * 8 operations per second
    assert found.tflops(10**12) == pytest.approx(48.0)


def test_skipped_steps_are_counted_and_left_out():
    steps = [step(1, clip=1.0), step(2, skipped=True), step(3, clip=3.0)]
    outcome = Outcome(steps, None)
    assert outcome.skipped_steps == 1
    assert outcome.losses == [1.0, 3.0]
    assert mean_breakdown_s(steps) == {"clip": 2.0}
    assert mean_breakdown_s([]) == {}
