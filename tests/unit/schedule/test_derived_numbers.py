"""A derived instance's numbers, worked out from its profiles by hand."""

from __future__ import annotations

import pytest

from lazytrain.errors import DoesNotFit
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.execution import reserve_bytes
from lazytrain.schedule.instance import Bandwidth, Options
from lazytrain.schedule.memory import host_bytes
from lazytrain.units import GIB


def derived(hardware, layers, row, config, **optimizer):
    """Return the instance, with other settings of the optimizer."""
    settings = config.optimizer.model_copy(update=optimizer)
    return derive_instance(
        hardware, layers, row, config.model_copy(update={"optimizer": settings})
    )


def test_rates_are_those_of_both_ways_at_once(hardware, layers, make_row, make_config):
    instance = derived(hardware, layers, make_row(), make_config())
    rates = Bandwidth(d2h=3e9, h2d=4e9, nvme_write=5e8, nvme_read=1e9)
    assert instance.bandwidth == rates


def test_windows_last_as_long_as_the_slower_of_compute_and_weights(
    hardware, layers, make_row, make_config
):
    """Twice the profiled tokens: 20 and 40 ms forward, 60 and 120 ms backward.

    800,000 bytes take 50 ms at 16 MB/s.
    """
    link = hardware.link.model_copy(update={"h2d_together": 16e6})
    slow = hardware.model_copy(update={"link": link})
    instance = derived(slow, layers, make_row(), make_config())
    assert instance.rho_s == pytest.approx((0.02, 0.02, 0.02, 0.04) * 2)
    assert instance.window_write_s == pytest.approx((0.05,) * 8)
    assert instance.window_read_s == pytest.approx((0.06, 0.06, 0.06, 0.12) * 2)
    link = hardware.link.model_copy(update={"h2d_together": 8e6})
    slower = hardware.model_copy(update={"link": link})
    instance = derived(slower, layers, make_row(), make_config())
    assert instance.window_read_s == pytest.approx((0.1, 0.1, 0.1, 0.12) * 2)
    assert instance.mandatory_h2d_bytes == (800_000,) * 8
    assert instance.mandatory_d2h_bytes == (0,) * 8


def test_options_and_small_terms_are_the_executors(
    hardware, layers, make_row, make_config
):
    instance = derived(hardware, layers, make_row(), make_config())
    assert instance.options == Options(
        read_deadline="layer", transient=True, memory="static"
    )
    lambdas = (instance.lambda_z_s, instance.lambda_n_s, instance.lambda_c_s)
    assert lambdas == (1e-4, 1e-3, 1e-5)
    # Where a layer takes 10 us only, they are a hundredth, a tenth, a thousandth.
    quick = tuple(
        cost.model_copy(update={"forward_s": 5e-6, "backward_s": 1e-5})
        for cost in layers.layers
    )
    fast = layers.model_copy(update={"layers": quick})
    instance = derived(hardware, fast, make_row(), make_config())
    lambdas = (instance.lambda_z_s, instance.lambda_n_s, instance.lambda_c_s)
    assert lambdas == pytest.approx((1e-7, 1e-6, 1e-8))


@pytest.mark.parametrize(("count", "longest"), [(8, 8), (64, 8), (65, 9), (100, 10)])
def test_blocks_are_at_most_eight_or_the_root_of_the_layers(
    hardware, layers, make_row, make_config, count, longest
):
    deep = layers.model_copy(update={"layer_types": ("linear_attention",) * count})
    instance = derived(hardware, deep, make_row(), make_config("1GiB"))
    assert instance.max_block == longest


def test_an_eager_body_has_no_menu(hardware, layers, compiled, make_row, make_config):
    assert all(cost.levels for cost in layers.layers)
    assert derived(hardware, layers, make_row(), make_config()).levels == {}
    menu = derived(hardware, compiled, make_row(), make_config()).levels
    assert set(menu) == {"linear_attention", "full_attention"}


def test_automatic_budgets_leave_a_tenth_of_the_host_and_half_of_the_disk(
    hardware, layers, make_row, make_config
):
    instance = derived(hardware, layers, make_row(), make_config())
    held = instance.fixed_bytes.cpu + instance.budget_bytes.cpu
    assert held == int(0.9 * 16 * GIB)
    assert instance.budget_bytes.nvme == 5 * 10**9


def test_a_cap_must_leave_a_byte_for_activations(
    hardware, layers, make_row, make_config
):
    needs = derived(hardware, layers, make_row(), make_config()).fixed_bytes.gpu
    one = derived(hardware, layers, make_row(), make_config(f"{needs + 1}B"))
    assert one.budget_bytes.gpu == 1
    with pytest.raises(DoesNotFit, match="gpu_cap"):
        derived(hardware, layers, make_row(), make_config(f"{needs}B"))


def test_the_disk_alone_makes_boundaries_pass(hardware, layers, make_row, make_config):
    """Three hidden states move where any tier takes boundaries, else one."""
    size = 32 * 128 * 128 * 4
    none, disk, host = (
        derived(
            hardware,
            layers,
            make_row(),
            make_config(cpu_activations=cpu, nvme_activations=nvme),
        ).fixed_bytes.gpu
        for cpu, nvme in (("0B", "0B"), ("0B", "1GiB"), ("1GiB", "0B"))
    )
    assert disk == host == none + 2 * size


@pytest.mark.parametrize(
    ("memory", "reserve"),
    [(0, 0), (20 * GIB, GIB), (80 * GIB, 4 * GIB), (139 * GIB, 4 * GIB)],
)
def test_a_twentieth_of_a_card_is_reserved_and_four_gib_at_most(
    hardware, memory, reserve
):
    card = hardware.model_copy(update={"gpu_memory_bytes": memory})
    assert reserve_bytes(card) == reserve


def test_gradients_wait_where_they_would_take_the_last_eighth_of_the_host(
    hardware, layers, make_row, make_config
):
    roomy = derived(hardware, layers, make_row(), make_config())
    whole = host_bytes(roomy.parts, roomy.execution).total
    for capacity, drain in (
        (whole * 8 // 7 + 2, "whole"),
        (whole * 8 // 7 - 2, "as-consumed"),
        (whole + 1, "as-consumed"),
    ):
        config = make_config(host_capacity=f"{capacity}B", nvme_activations="0B")
        instance = derived(hardware, layers, make_row(), config)
        assert instance.execution.gradient_drain == drain


def test_state_that_is_on_the_disk_anyway_leaves_room_for_gradients(
    hardware, layers, make_row, make_config
):
    """In memory, state and gradients would be too much; on disk, state is not there."""
    roomy = derived(hardware, layers, make_row(), make_config(), state_home="nvme")
    beside = host_bytes(roomy.parts, roomy.execution).total
    in_memory = roomy.execution.model_copy(update={"state_on_nvme": ()})
    assert beside * 8 // 7 + 2 < host_bytes(roomy.parts, in_memory).total
    config = make_config(host_capacity=f"{beside * 8 // 7 + 2}B")
    instance = derived(hardware, layers, make_row(), config, state_home="nvme")
    assert instance.execution.gradient_drain == "whole"
    assert len(instance.execution.state_on_nvme) == 10


def test_a_batch_major_step_bounces_nothing(hardware, layers, make_row, make_ordered):
    """Host memory that holds all but bounce buffers keeps all state."""
    config = make_ordered("batch-major", "64MiB")
    roomy = derived(hardware, layers, make_row(), config)
    whole = host_bytes(roomy.parts, roomy.execution).total
    settings = {"host_capacity": f"{whole}B"}
    tight = make_ordered("batch-major", "64MiB", **settings)
    cpu = tight.accelerators["cpu"]
    executor = cpu.executor.model_copy(update={"gradient_drain": "whole"})
    changed = {"cpu": cpu.model_copy(update={"executor": executor})}
    tight = tight.model_copy(update={"accelerators": changed})
    instance = derived(hardware, layers, make_row(), tight, state_home="auto")
    assert instance.execution.state_on_nvme == ()
    assert instance.fixed_bytes.cpu == whole
