"""An instance is held against its row: every field that a row decides is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lazytrain.config import PipelineConfig, RunRow
from lazytrain.errors import PlanMismatch
from lazytrain.records import HardwareProfile, LayerProfile
from lazytrain.schedule.baseline import least_bytes
from lazytrain.schedule.derive import derive_instance
from lazytrain.schedule.instance import Instance
from lazytrain.schedule.order import instance_for
from lazytrain.schedule.row_check import differences, refuse_other_row
from lazytrain.systems import ALL
from lazytrain.units import GIB, MIB

RowMaker = Callable[..., RunRow]
ConfigMaker = Callable[..., PipelineConfig]
PLANNED = [system.name for system in ALL if system.is_planned]


def changed(config: PipelineConfig, **values: Any) -> PipelineConfig:
    """Return a configuration with other executor, budgets or optimizer settings."""
    cpu = config.accelerators["cpu"].model_dump(mode="json")
    whole = config.model_dump(mode="json")
    for name, fields in values.items():
        (whole if name == "optimizer" else cpu)[name] |= fields
    return PipelineConfig.model_validate(whole | {"accelerators": {"cpu": cpu}})


@pytest.fixture
def card(hardware: HardwareProfile) -> HardwareProfile:
    """Return a machine with a GPU of 1 GiB."""
    return hardware.model_copy(update={"gpu_memory_bytes": GIB, "gpu_cap_bytes": GIB})


@pytest.mark.parametrize("system", PLANNED)
@pytest.mark.parametrize("home", ["cpu", "nvme", "auto"])
@pytest.mark.parametrize("order", ["layer-major", "batch-major", "auto"])
def test_a_row_s_own_instance_has_no_difference(
    system: str,
    home: str,
    order: str,
    card: HardwareProfile,
    compiled: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    config = changed(
        make_config("128MiB", cpu_activations="2MiB", nvme_activations="4MiB"),
        optimizer={"state_home": home},
        executor={"order": order, "body": "compile"},
    )
    row = make_row(system)
    instance = instance_for(card, compiled, row, config)
    assert list(differences(instance, row, config, None)) == []
    refuse_other_row(instance, row, config, None)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"executor": {"body": "compile"}}, "body = eager, .* compile"),
    ({"executor": {"dtype": "bfloat16"}}, r"bytes of a weight = 4\.0, .* 2"),
    ({"executor": {"micro_batch_tokens": 512}}, "micro_batch = 8, .* 4"),
    ({"executor": {"save_level": "all"}}, "save_level = inputs, .* all"),
    ({"executor": {"prefetch_distance": 2}}, "prefetch_distance = 1, .* 2"),
    ({"executor": {"weight_slots": 4}}, "weight_slots = 3, .* 4"),
    ({"executor": {"grad_slots": 3}}, "grad_slots = 2, .* 3"),
    ({"executor": {"chunk_bytes": "2MiB"}}, "chunk_bytes = 67108864, .* 2097152"),
    ({"executor": {"loss_chunk_tokens": 64}}, "loss_chunk_tokens = 4096, .* 64"),
    ({"executor": {"resident_weights": True}}, "resident_weights = False, .* True"),
    ({"executor": {"order": "batch-major"}}, "order = layer-major, .* batch-major"),
    ({"executor": {"gradient_drain": "as-consumed"}}, "gradient_drain = whole"),
    ({"optimizer": {"type": "adamw"}}, "optimizer = hybrid_adamw_8bit, .* adamw"),
    (
        {"optimizer": {"eight_bit_fraction": 0.5}},
        r"fraction = 0\.02, .* 0\.5",
    ),
    ({"optimizer": {"threads": 3}}, "optimizer_threads = 0, .* 3"),
    ({"optimizer": {"state_home": "nvme"}}, "state_on_nvme = "),
    ({"budgets": {"gpu_cap": "80MiB"}}, r"gpu_cap = 64\.0 MiB, .* 80\.0 MiB"),
    ({"budgets": {"gpu_cap": "67108865B"}}, "gpu_cap = 67108864 B, .* 67108865 B"),
    ({"budgets": {"cpu_activations": "3MiB"}}, r"cpu_activations = .* 3\.0 MiB"),
    ({"budgets": {"nvme_activations": "3MiB"}}, r"nvme_activations = .* 3\.0 MiB"),
    ({"budgets": {"host_capacity": "9GiB"}}, r"host_capacity = 14\.40 GiB, .* 9\.00"),
]


@pytest.mark.parametrize(("changes", "message"), CHANGES, ids=str)
def test_another_setting_is_named_with_both_values_and_the_remedy(
    changes: dict[str, Any],
    message: str,
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    row, config = make_row(), make_config("64MiB")
    instance = derive_instance(hardware, layers, row, config)
    other = changed(config, **changes)
    with pytest.raises(PlanMismatch, match=message) as caught:
        refuse_other_row(instance, row, other, None)
    assert "is not for cpu/27B/lazytrain" in str(caught.value)
    assert "`lazytrain instance` and `lazytrain solve`" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 16}, "batch = 32, .* 16"),
        ({"seq_len": 64}, "seq_len = 128, .* 64"),
        ({"model": "3B-mini"}, "model = 27B-mini, .* 3B-mini"),
        ({"system": "lazytrain-no-milp"}, "method = milp, .* fixed-interval:4"),
        ({"system": "lazytrain-8bit"}, "optimizer = hybrid_adamw_8bit, .* cpu_adamw"),
    ],
    ids=str,
)
def test_another_row_is_named_with_both_values(
    values: dict[str, Any],
    message: str,
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    row, config = make_row(), make_config("64MiB")
    instance = derive_instance(hardware, layers, row, config)
    with pytest.raises(PlanMismatch, match=message):
        refuse_other_row(instance, row.model_copy(update=values), config, None)


def test_a_cap_of_the_machine_s_own_is_compared_within_a_hundredth(
    card: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    row, config = make_row(), make_config("auto")
    instance = derive_instance(card, layers, row, config)
    for cap in (GIB, GIB - 10 * MIB, GIB + 10 * MIB, None):
        refuse_other_row(instance, row, config, cap)
    for cap in (GIB - 20 * MIB, GIB + 20 * MIB):
        with pytest.raises(PlanMismatch, match="gpu_cap"):
            refuse_other_row(instance, row, config, cap)


def test_a_host_capacity_leaves_room_for_the_process_beside_a_gpu_only(
    card: HardwareProfile,
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    row = make_row()
    config = make_config("128MiB", host_capacity="8GiB")
    for machine, room in ((card, 5 * GIB), (hardware, 8 * GIB)):
        instance = derive_instance(machine, layers, row, config)
        assert instance.fixed_bytes.cpu + instance.budget_bytes.cpu == room
        refuse_other_row(instance, row, config, None)
        other = changed(config, budgets={"host_capacity": "9GiB"})
        with pytest.raises(PlanMismatch, match="host_capacity"):
            refuse_other_row(instance, row, other, None)


def test_a_baseline_may_need_more_than_its_cap(
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    row, config = make_row("megatrain-milp"), make_config("30MiB")
    instance = derive_instance(hardware, layers, row, config)
    assert instance.budget_bytes.gpu == least_bytes(instance)
    refuse_other_row(instance, row, config, None)
    roomy = make_config("512MiB")
    instance = derive_instance(hardware, layers, row, roomy)
    assert instance.budget_bytes.gpu > least_bytes(instance)
    with pytest.raises(PlanMismatch, match="gpu_cap"):
        refuse_other_row(instance, row, config, None)


def test_smaller_waves_are_a_choice_and_larger_ones_are_not(
    hardware: HardwareProfile,
    layers: LayerProfile,
    make_row: RowMaker,
    make_ordered: ConfigMaker,
) -> None:
    row = make_row()
    config = make_ordered("batch-major", "256MiB", tokens=1024)
    instance = derive_instance(hardware, layers, row, config)
    refuse_other_row(instance, row, make_ordered("auto", "256MiB", tokens=4096), None)
    smaller = make_ordered("auto", "256MiB", tokens=512)
    with pytest.raises(PlanMismatch, match=r"micro_batch = 8, .* 4"):
        refuse_other_row(instance, row, smaller, None)


def test_the_paper_s_instances_belong_to_no_row(
    make_instance: Callable[..., Instance],
    make_row: RowMaker,
    make_config: ConfigMaker,
) -> None:
    with pytest.raises(PlanMismatch, match="execution = None"):
        refuse_other_row(make_instance(), make_row(), make_config(), None)
