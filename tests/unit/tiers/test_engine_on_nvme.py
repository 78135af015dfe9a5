"""Training with boundaries on a bad disk: the undisturbed numbers, or a clear error."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil

import pytest
import torch
from faulty_layer import ErrorLayer, LyingLayer, ShortLayer, SlowLayer
from streaming import engine_for, plan_for, random_batch, small_config, weights_of

from lazytrain.tiers.extents import ALIGN_BYTES
from lazytrain.tiers.nvme import NvmeTier
from lazytrain.tiers.tier import StorageFault

STEPS = 3
CAPACITY = 16 << 20


@functools.cache
def config():
    return small_config("3B-mini", layers=3)


def train(homes, tier=None, before_step=None):
    """Return the losses and final weights of a few steps."""
    engine = engine_for(config(), plan_for(config(), homes, micro_batch=1), tier=tier)
    losses = []
    try:
        for step in range(STEPS):
            if before_step is not None:
                before_step(step)
            batch = random_batch(config().vocab_size, seed=step)
            losses.append(engine.train_step(batch, 1e-3).result().loss)
        engine.drain()
        return losses, {name: w.clone() for name, w in weights_of(engine).items()}
    finally:
        engine.close()


@functools.cache
def undisturbed():
    return train("CCCG")


def fault_of(tier, before_step):
    """Train on a disk that fails; return the storage fault that stopped it."""
    with pytest.raises((StorageFault, RuntimeError)) as caught:
        train("NNNG", tier, before_step)
    error = caught.value
    # The engine may report what a worker raised as the cause of its own error.
    while error is not None and not isinstance(error, StorageFault):
        error = error.__cause__
    assert error is not None, caught.value
    return str(error)


LAYERS = {
    "healthy": lambda: None,
    "slow, out of order": lambda: SlowLayer(0, 0.004),
    "short": lambda: ShortLayer(0, ALIGN_BYTES),
    "without O_DIRECT": lambda: ErrorLayer(errno.EINVAL, "open-direct"),
}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("homes", ["NNNG", "CNRG"])
def test_losses_and_weights_are_those_of_host_memory(tmp_path, case, homes):
    layer = LAYERS[case]()
    with NvmeTier(tmp_path, CAPACITY, chunk_bytes=8192, layer=layer) as tier:
        losses, weights = train(homes, tier)
        assert tier.used_bytes > 0
    expected_losses, expected = undisturbed()
    assert losses == expected_losses
    for name, weight in expected.items():
        assert torch.equal(weights[name], weight), name


def test_a_directory_deleted_meanwhile_changes_nothing(tmp_path):
    with NvmeTier(tmp_path, CAPACITY) as tier:
        losses, _ = train(
            "NNNG", tier, lambda step: step == 1 and shutil.rmtree(tier.path.parent)
        )
    assert losses == undisturbed()[0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_disk_that_fails_meanwhile_stops_with_the_boundary(tmp_path, verb, number):
    layer = ErrorLayer(number, verb, is_armed=False)

    def arm(step):
        layer.is_armed = step == 1

    with NvmeTier(tmp_path, CAPACITY, layer=layer) as tier:
        told = fault_of(tier, arm)
    assert re.search(rf"boundary.\d.*{os.strerror(number)}", told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shift", [None, 1 << 20])
def test_older_bytes_never_reach_a_step(tmp_path, shift):
    layer = LyingLayer(shift)

    def arm(step):
        layer.is_armed = step == 1

    with NvmeTier(tmp_path, CAPACITY, layer=layer) as tier:
        told = fault_of(tier, arm)
    assert re.search(r"boundary.\d.*checksum", told)
