"""Training with optimizer state on a disk: the bits of state in memory, or an error."""

from __future__ import annotations

import errno
import functools
import re

import pytest
import torch
from faulty_layer import ErrorLayer, LyingLayer, ShortLayer, SlowLayer
from streaming import engine_for, plan_for, random_batch, small_config, weights_of

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput, PlanMismatch
from lazytrain.tiers.deferred import loaded
from lazytrain.tiers.extents import ALIGN_BYTES
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import StorageFault, TierFull

STEPS = 3
CAPACITY = 32 << 20
UNIT = 3 * 4096  # several units per layer, cut inside tensors
FORMATS = {"fp32": "adamw", "8bit": "cpu_adamw_8bit", "hybrid": "hybrid_adamw_8bit"}


@functools.cache
def config():
    return small_config("3B-mini", layers=3)


def moved(plan, parts, home="nvme"):
    """Return a plan whose parts keep their state elsewhere; None moves all."""

    def part_of(part):
        if parts is not None and part.name not in parts:
            return part
        state = part.optimizer_state.model_copy(update={"home": home})
        return part.model_copy(update={"optimizer_state": state})

    return plan.model_copy(update={"parts": tuple(map(part_of, plan.parts))})


def engine_of(state, tier, *, parts=None, homes="GCGG", **options):
    """Return an engine whose state of some parts is on the tier."""
    fields = options.pop("fields", {})
    plan = plan_for(config(), homes, micro_batch=1, state=state, **fields)
    if tier is not None:
        plan = moved(plan, parts)
    settings = OptimizerSettings(
        type=FORMATS[state],
        master=options.pop("master", "fp32-split"),
        weight_decay=0.01,
        eight_bit_fraction=0.02,
        threads=1,
    )
    options = {"unit_parameters": UNIT, "settings": settings} | options
    return engine_for(config(), plan, tier=tier, **options)


def train(engine, steps=range(STEPS)):
    """Train; return losses, weights and state, all copied."""
    losses = []
    for step in steps:
        batch = random_batch(config().vocab_size, seed=step)
        losses.append(engine.train_step(batch, 1e-3).result().loss)
    return losses, weights_of(engine), state_of(engine)


def state_of(engine):
    """Return a copy of all optimizer state."""
    return {n: loaded(t).clone() for n, t in engine.optimizer_tensors().items()}


def assert_same(found, expected):
    assert found[0] == expected[0]
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        assert got.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("state", FORMATS)
@pytest.mark.parametrize(
    ("dtype", "master", "kernel"),
    [
        (torch.float32, "fp32-split", "auto"),
        (torch.bfloat16, "fp32-split", "auto"),
        (torch.bfloat16, "bf16-stochastic", "auto"),
        (torch.bfloat16, "fp32-split", "reference"),
    ],
)
def test_every_bit_is_that_of_state_in_memory(tmp_path, state, dtype, master, kernel):
    options = {"kernel": kernel, "dtype": dtype, "master": master}
    engine = engine_of(state, None, **options)
    expected = train(engine)
    engine.close()
    with NvmeTier(tmp_path, CAPACITY, chunk_bytes=8192) as tier:
        engine = engine_of(state, tier, **options)
        assert not engine._optimizer.states
        found = train(engine)
        assert tier.used_bytes == engine._optimizer._streamed.tier_bytes
        engine.close()
    assert_same(found, expected)
    assert list(tmp_path.iterdir()) == []


CASES = {
    "some parts": {"parts": ("layer.0", "layer.2", "head")},
    "boundaries too": {"homes": "NNNG"},
    "another order": {
        "fields": {"update_order": ("head", "layer.2", "layer.1", "layer.0")}
    },
    "gradients as consumed": {"fields": {"waiting": ("layer.0", "layer.1", "layer.2")}},
    "one unit per part": {"unit_parameters": 1 << 30},
}
LAYERS = {
    "healthy": lambda: None,
    "slow, out of order": lambda: SlowLayer(0, 0.002),
    "short": lambda: ShortLayer(0, ALIGN_BYTES),
    "without O_DIRECT": lambda: ErrorLayer(errno.EINVAL, "open-direct"),
}


@pytest.mark.parametrize(
    ("case", "layer"),
    [(case, "healthy") for case in CASES]
    + [("boundaries too", name) for name in LAYERS],
)
def test_no_plan_and_no_odd_disk_changes_a_bit(tmp_path, case, layer):
    options = dict(CASES[case])
    fields = dict(options.pop("fields", {}))
    if "update_order" in fields:
        fields["update_order"] = (*fields["update_order"], "embedding")
    engine = engine_of("hybrid", None, fields=fields)
    expected = train(engine)
    engine.close()
    disk = LAYERS[layer]()
    with NvmeTier(tmp_path, CAPACITY, chunk_bytes=8192, layer=disk) as tier:
        engine = engine_of("hybrid", tier, fields=fields, **options)
        found = train(engine)
        engine.close()
    assert_same(found, expected)


@pytest.mark.parametrize("state", FORMATS)
def test_saved_state_moves_between_memory_and_disk(tmp_path, state):
    engine = engine_of(state, None)
    expected = train(engine, range(4))
    engine.close()
    with NvmeTier(tmp_path, CAPACITY) as tier:
        # Two steps on disk; a third in memory; a fourth on disk again.
        saved, ends, losses = {}, None, []
        for home, steps in ((tier, (0, 1)), (None, (2,)), (tier, (3,))):
            engine = engine_of(state, home)
            if ends is not None:
                engine.load_training_state(ends, saved, steps[0])
            some, ends, saved = train(engine, steps)
            losses += some
            engine.close()
            if home is not None:
                release_all(tier)
    assert_same((losses, ends, saved), expected)


def release_all(tier):
    """Free a tier for the next engine."""
    for key in list(tier._book._pages):
        tier.release(key)


def test_a_non_finite_norm_leaves_the_state_on_disk_untouched(tmp_path):
    with NvmeTier(tmp_path, CAPACITY) as tier:
        engine = engine_of("hybrid", tier)
        train(engine, range(1))
        weight = dict(engine.named_weights())["model.layers.1.mlp.up_proj.weight"]
        kept = weight[0, 0].item()
        before = state_of(engine)
        weight[0, 0] = float("nan")
        batch = random_batch(config().vocab_size, seed=1)
        assert engine.train_step(batch, 1e-3).result().skipped
        for name, tensor in state_of(engine).items():
            assert torch.equal(tensor, before[name]), name
        weight[0, 0] = kept
        assert not engine.train_step(batch, 1e-3).result().skipped
        assert any(not torch.equal(t, before[n]) for n, t in state_of(engine).items())
        engine.close()


def fault_of(layer, tmp_path):
    """Train on a disk that fails from the second step on; return the fault."""

    def run(engine):
        for step in range(STEPS):
            layer.is_armed = step == 1
            batch = random_batch(config().vocab_size, seed=step)
            engine.train_step(batch, 1e-3).result()
        engine.optimizer_tensors()

    with NvmeTier(tmp_path, CAPACITY, layer=layer) as tier:
        engine = engine_of("hybrid", tier)
        with pytest.raises((StorageFault, RuntimeError)) as caught:
            run(engine)
        engine.close()
    error = caught.value
    while error is not None and not isinstance(error, StorageFault):
        error = error.__cause__
    assert error is not None, caught.value
    return str(error)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_disk_that_fails_stops_the_run_with_the_part(tmp_path, verb, number):
    told = fault_of(ErrorLayer(number, verb, is_armed=False), tmp_path)
    assert re.search(r"optimizer\.(layer|embedding|head)", told)
    assert list(tmp_path.iterdir()) == []


def test_older_state_never_reaches_an_update(tmp_path):
    told = fault_of(LyingLayer(None), tmp_path)
    assert re.search(r"optimizer\..*checksum", told)


def test_host_memory_is_the_staging_and_not_the_state(tmp_path):
    engine = engine_of("fp32", None)
    in_memory = engine._optimizer.host_bytes
    engine.close()
    with NvmeTier(tmp_path, CAPACITY) as tier:
        engine = engine_of("fp32", tier)
        assert engine._optimizer.host_bytes < in_memory / 2
        # Four pages of two fp32 moments each.
        assert engine._optimizer.host_bytes <= 4 * 2 * (4 * UNIT + ALIGN_BYTES)
        engine.close()


def test_what_cannot_be_done_is_refused(tmp_path):
    plan = plan_for(config(), "GGGG", micro_batch=1)
    with pytest.raises(InvalidInput, match="optimizer state on NVMe"):
        engine_for(config(), moved(plan, None))
    with pytest.raises(PlanMismatch, match="optimizer_state"):
        engine_for(config(), moved(plan, None, home="gpu"))
    with NvmeTier(tmp_path, 1 << 16) as tier:
        engine = engine_of("fp32", tier)
        with pytest.raises((TierFull, RuntimeError)):
            train(engine)
        engine.close()
