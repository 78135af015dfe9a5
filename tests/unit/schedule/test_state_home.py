"""Optimizer state on NVMe in the plan: which parts, what it holds, what it costs."""

from __future__ import annotations

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.schedule.assumed import Job, Machine
from lazytrain.schedule.check import check
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.estimate import estimate
from lazytrain.schedule.heuristics import keep_all
from lazytrain.schedule.instance import Bandwidth, Costs, Execution, PartSpec
from lazytrain.schedule.memory import host_bytes
from lazytrain.schedule.shapes import model_shape
from lazytrain.schedule.simulate import simulate
from lazytrain.schedule.solve import solve
from lazytrain.schedule.staging import UNIT_PARAMETERS
from lazytrain.schedule.state_home import (
    left_for_boundaries,
    reserved_bytes,
    with_state_home,
)
from lazytrain.train.capacity import plan_host_bytes
from lazytrain.units import GIB


def configured(config, home, kind="adamw"):
    """Return a configuration with another home of the state."""
    optimizer = config.optimizer.model_copy(update={"state_home": home, "type": kind})
    return config.model_copy(update={"optimizer": optimizer})


@pytest.fixture
def derived(hardware, layers, make_row, make_config):
    """Return a maker of instances by home of the state."""

    def make(home, host_capacity="auto", system="lazytrain", **changes):
        config = make_config("1GiB", host_capacity=host_capacity, nvme_activations="0B")
        machine = hardware.model_copy(update=changes)
        row = make_row(system)
        return derive_instance(machine, layers, row, configured(config, home))

    return make


def test_by_default_and_for_rivals_state_stays_in_host_memory(derived):
    for instance in (
        derived("cpu"),
        derived("auto"),
        derived("nvme", system="megatrain"),
    ):
        assert instance.execution.state_on_nvme == ()
        assert instance.fixed_bytes.nvme == 0
        assert instance.costs.state_read_s == 0


def test_nvme_moves_every_part_and_its_bytes(derived, hardware):
    before, after = derived("cpu"), derived("nvme")
    parameters = sum(part.num_parameters for part in after.parts)
    assert after.execution.state_on_nvme == tuple(p.name for p in after.parts)
    assert after.fixed_bytes.nvme == 8 * parameters
    # All but four pages of the largest part's state leave the host.
    largest = max(part.num_parameters for part in after.parts)
    saved = 8 * parameters - 4 * 8 * largest
    assert after.fixed_bytes.cpu == before.fixed_bytes.cpu - saved
    assert after.costs.state_read_s == 8 / hardware.disk.read
    assert after.costs.state_write_s == 8 / hardware.disk.write
    assert after.sha256 != before.sha256
    plan = solve(after)
    assert {part.optimizer_state.home for part in plan.parts} == {"nvme"}
    assert check(plan, after).violations == ()
    assert plan.prediction.peak_bytes["nvme"] == 8 * parameters
    assert plan.prediction.peak_bytes["cpu"] == after.fixed_bytes.cpu
    assert 8 * parameters <= reserved_bytes(plan) < 8 * parameters + 32 * 2**20
    bare = plan.model_copy(update={"prediction": None})
    weights = sum(part.weight_bytes for part in after.parts)
    assert plan_host_bytes(bare, None) == 2 * weights


def test_auto_moves_the_last_updated_and_no_more_than_needed(derived):
    whole = derived("cpu").fixed_bytes.cpu
    tight = derived("auto", host_capacity=f"{whole - 4_000_000}B")
    moved = tight.execution.state_on_nvme
    names = [part.name for part in tight.parts]
    assert 0 < len(moved) < len(names)
    assert moved == tuple(names[-len(moved) :])
    # Gradients that wait in HBM are tried first; one part fewer would not fit.
    assert tight.execution.gradient_drain == "as-consumed"
    fewer = tight.execution.model_copy(update={"state_on_nvme": moved[1:]})
    assert host_bytes(tight.parts, fewer).total > whole - 4_000_000 - bounce(tight)


def bounce(instance):
    """Return what is left free for boundaries on NVMe."""
    return 3 * instance.boundary_bytes[0]


def test_auto_that_cannot_help_moves_everything(derived):
    instance = derived("auto", host_capacity="1MiB")
    assert len(instance.execution.state_on_nvme) == len(instance.parts)


def test_a_disk_that_is_too_small_is_named(derived):
    with pytest.raises(InvalidInput, match=r"optimizer\.state_home") as caught:
        derived("nvme", disk_free_bytes=10**6)
    assert "of state do not fit" in str(caught.value)


def test_boundaries_get_what_the_state_leaves_of_the_disk():
    rates = Bandwidth(d2h=1, h2d=1, nvme_write=20, nvme_read=10)
    # 40 bytes take 2 s to write and 4 s to read.
    free = left_for_boundaries(rates, 0, 12, 24)
    assert free == rates
    half = left_for_boundaries(rates, 40, 12, 24)
    assert (half.nvme_write, half.nvme_read) == (10, 10)
    more = left_for_boundaries(rates, 160, 12, 24)
    assert (more.nvme_write, more.nvme_read) == (1, 5)
    none = left_for_boundaries(rates, 10_000, 12, 24)
    assert (none.nvme_write, none.nvme_read) == (1, 1)


LAYERS = 4


def timed(make_instance, **costs):
    """Return an instance of four layers, 1 s forward and 3 s backward, free links."""
    spec = {"kind": "layer", "layer_type": "layer", "gradient_bytes": 0}
    parts = tuple(
        PartSpec(name=f"layer.{i}", num_parameters=1000, weight_bytes=0, **spec)
        for i in range(LAYERS)
    )
    return make_instance(
        layers=LAYERS,
        budget_bytes={"gpu": 900, "cpu": 0, "nvme": 0},
        costs=Costs(
            forward_s=(1.0,) * LAYERS,
            backward_s=(3.0,) * LAYERS,
            optimizer_parameters_per_s=1e6,
            **costs,
        ),
        parts=parts,
        execution=Execution(
            batch=1,
            seq_len=1,
            micro_batch=1,
            state_on_nvme=tuple(part.name for part in parts),
        ),
    )


def test_state_that_the_step_covers_costs_nothing(make_instance):
    instance = timed(make_instance, state_read_s=1e-4, state_write_s=1e-4)
    result = simulate(keep_all(instance), instance)
    assert result.step_s == pytest.approx(16, rel=0.02)
    # One disk reads and writes in turn.
    assert result.busy_s["nvme_state"] == pytest.approx(0.8)


def test_a_disk_slower_than_the_step_sets_its_pace(make_instance):
    # Four parts of 5 s each way: the disk alone needs 40 s.
    instance = timed(make_instance, state_read_s=5e-3, state_write_s=5e-3)
    result = simulate(keep_all(instance), instance)
    # Compute goes on behind the first parts, which update first.
    assert 40 <= round(result.step_s, 6) < 16 + 40
    assert result.exposed_s["nvme_state"] > 20


def test_units_are_whole_blocks_and_auto_respects_the_order(make_instance):
    instance = timed(make_instance)
    assert UNIT_PARAMETERS % 4096 == 0
    run = instance.execution.model_copy(update={"state_on_nvme": ()})
    assert with_state_home(run, instance.parts, "auto", 10**9).state_on_nvme == ()
    moved = with_state_home(run, instance.parts, "auto", 0).state_on_nvme
    assert moved == tuple(part.name for part in instance.parts)


def test_the_estimator_knows_state_on_nvme():
    shape = model_shape(
        {
            "model_type": "qwen2",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
        "3B",
    )
    machine = Machine(
        70 * GIB, 24 * GIB, 200 * GIB, 43e9, 43e9, 1.6e9, 2.4e9, 5e14, 4e9
    )
    held = estimate(shape, machine, Job(32, 1024, optimizer="adamw"))
    assert not held.fits
    job = Job(32, 1024, optimizer="adamw", state_home="nvme")
    moved = estimate(shape, machine, job)
    assert moved.fits
    assert (
        moved.cpu_bytes["optimizer_state"] == moved.cpu_bytes["master_remainder"] == 0
    )
    assert moved.cpu_bytes["state_staging"] == 4 * 10 * UNIT_PARAMETERS
    # 31 GB a step each way at 1.6 and 2.4 GB/s: 32 s, less than that beside compute.
    assert 32 < moved.step_s < 36
    assert moved.exposed_s["nvme_state"] > 20
