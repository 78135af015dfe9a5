"""A fault in the launching thread ends the step, not in a wait for ever."""

import threading

import pytest
from streaming import engine_for, plan_for, random_batch, small_config, weights_of

from lazytrain.errors import OutOfMemory
from lazytrain.tiers.nvme import NvmeTier

FAULTS = [KeyboardInterrupt(), OutOfMemory("gpu", 1, "test"), AssertionError("test")]


def closes(engine):
    """Close in a thread of its own; whether it came back."""
    thread = threading.Thread(target=engine.close, daemon=True)
    thread.start()
    thread.join(120)
    return not thread.is_alive()


def failing(fault):
    def call(*_given, **_named):
        raise fault

    return call


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("homes", ["GGGGG", "NRNCG"])
@pytest.mark.parametrize("place", ["head", "runner"])
def test_a_fault_within_a_step_ends_it(tmp_path, monkeypatch, fault, homes, place):
    config = small_config("7B-mini", layers=4)
    with NvmeTier(tmp_path, 64 * 2**20) as tier:
        engine = engine_for(config, plan_for(config, homes), tier=tier)
        truth = engine_for(config, plan_for(config, "GGGGG"))
        batch = random_batch(config.vocab_size)
        first = engine.train_step(batch, 1e-3)
        truth.train_step(batch, 1e-3).result()
        method = {"head": "forward_backward", "runner": "backward"}[place]
        target = getattr(engine._machinery, place)
        monkeypatch.setattr(target, method, failing(fault))
        with pytest.raises(type(fault)):
            engine.train_step(batch, 1e-3)
        assert first.result().loss > 0
        with pytest.raises((type(fault), RuntimeError)):
            engine.drain()  # a broken engine says so
        assert closes(engine)
        # The step before had been launched whole: its updates have arrived.
        expected = weights_of(truth)
        for name, weight in engine._named(engine._host):
            assert weight.equal(expected[name]), name
        assert closes(truth)


def test_a_fault_within_an_evaluation_ends_it(monkeypatch):
    config = small_config("7B-mini", layers=4)
    engine = engine_for(config, plan_for(config, "GGGGG"))
    monkeypatch.setattr(
        engine._machinery.runner, "replay", failing(KeyboardInterrupt())
    )
    with pytest.raises(KeyboardInterrupt):
        engine.evaluate_loss(random_batch(config.vocab_size))
    assert closes(engine)
