"""The planner's figure for HBM is what the executor allocates, for either order."""

import pytest
import torch
from streaming import (
    engine_for,
    gradients_of,
    random_batch,
    reference_gradients,
    relative_error,
    small_config,
    weights_of,
)

from lazytrain.executor.layout import Layout
from lazytrain.models.decoder import Decoder
from lazytrain.schedule.assemble import assemble
from lazytrain.schedule.instance import Budget, Execution, Instance, PartSpec
from lazytrain.schedule.memory import (
    ModelSizes,
    boundary_bytes,
    device_bytes,
    planned_bytes,
)
from lazytrain.schedule.plan import LETTERS, Solve

LAYERS, ITEM = 4, 4
WORKSPACE = 12345
BATCH, TOKENS = 4, 24


def specs_of(decoder):
    """Return the parts as the executor lays them out: tensors on 256 bytes."""
    sizes = {p.name: Layout.of(p.tensors, ITEM).numel for p in decoder.parts}
    return tuple(
        PartSpec(
            name=part.name,
            kind=part.kind,
            layer_type=part.layer_type,
            num_parameters=sizes[part.name],
            weight_bytes=ITEM * sizes[part.name],
            gradient_bytes=ITEM * sizes[part.name],
        )
        for part in decoder.parts
    )


def planned(config, letters, **changes):
    """Return the plan of these homes, its instance, and its fixed bytes by cause."""
    decoder = Decoder(config)
    run = Execution(
        batch=BATCH,
        seq_len=TOKENS,
        **{"loss_chunk_tokens": 16, "optimizer": "adamw", "master": "fp32"} | changes,
    )
    parts = specs_of(decoder)
    sizes = ModelSizes(
        hidden=decoder.hidden_size,
        vocab=decoder.vocab_size,
        itemsize=ITEM,
        workspace_bytes=WORKSPACE,
    )
    fixed = device_bytes(parts, run, sizes, offloads=False)
    nothing = (0,) * LAYERS
    instance = Instance(
        name="test",
        model="test",
        layers=LAYERS,
        layer_types=decoder.layer_types,
        boundary_bytes=(boundary_bytes(run, sizes),) * (LAYERS + 1),
        rho_s=(1.0,) * LAYERS,
        window_write_s=(1.0,) * LAYERS,
        window_read_s=(3.0,) * LAYERS,
        mandatory_d2h_bytes=nothing,
        mandatory_h2d_bytes=nothing,
        bandwidth={"d2h": 1e9, "h2d": 1e9, "nvme_write": 1, "nvme_read": 1},
        budget_bytes=Budget(gpu=10**9, cpu=0, nvme=0),
        fixed_bytes=Budget(gpu=fixed.total, cpu=0, nvme=0),
        parts=parts,
        execution=run,
    )
    how = Solve(status="heuristic", method="test", objective_s=0.0)
    homes = [LETTERS[letter] for letter in letters]
    nowhere = {link: {} for link in ("d2h", "h2d", "nvme_write", "nvme_read")}
    plan = assemble(instance, homes, nowhere, how)
    counts = {part.name: part.num_parameters for part in decoder.parts}
    true = tuple(
        part.model_copy(update={"num_parameters": counts[part.name]})
        for part in plan.parts
    )
    return plan.model_copy(update={"parts": true}), instance, fixed


WAVES = {"order": "batch-major", "resident_weights": True}
SHAPES = {
    "tied, four waves": ("3B-mini", "GGGGG", WAVES | {"micro_batch": 1}),
    "tied, two waves": ("3B-mini", "GRGRG", WAVES | {"micro_batch": 2}),
    "untied, two waves": ("7B-mini", "GRRRG", WAVES | {"micro_batch": 2}),
    "untied, one wave": ("7B-mini", "GGRGG", WAVES | {"micro_batch": 4}),
    "two layer types": ("27B-mini", "GGGGG", WAVES | {"micro_batch": 2}),
    "gradients that wait": (
        "7B-mini",
        "GGGGG",
        WAVES | {"micro_batch": 2, "gradient_drain": "as-consumed", "grad_slots": 3},
    ),
    "layer-major": ("7B-mini", "GRGGG", {"micro_batch": 2}),
    "layer-major, resident": (
        "7B-mini",
        "GGGGG",
        {"micro_batch": 1, "resident_weights": True},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_planned_is_what_is_allocated(shape):
    model, letters, changes = SHAPES[shape]
    config = small_config(model, layers=LAYERS)
    plan, instance, fixed = planned(config, letters, **changes)
    engine = engine_for(config, plan)
    m = engine._machinery
    assert m.weights.device_bytes == fixed.weight_slots + fixed.ends
    sums = fixed.gradient_accumulator + fixed.end_gradient
    assert m.sums.device_bytes == sums + fixed.grad_slots + fixed.waiting_gradients
    allocated = m.weights.device_bytes + m.sums.device_bytes + m.boundaries.device_bytes
    engine.close()
    # The rest comes and goes: logits, a layer's workspace, one hidden gradient.
    passing = fixed.loss_chunk + WORKSPACE + instance.boundary_bytes[0]
    assert allocated + passing == planned_bytes(plan, instance)["gpu"]


@pytest.mark.parametrize("shape", ["tied, four waves", "untied, two waves"])
def test_a_plan_in_waves_gives_the_gradients_of_autograd(shape):
    model, letters, changes = SHAPES[shape]
    config = small_config(model, layers=LAYERS)
    plan, _, _ = planned(config, letters, **changes)
    engine = engine_for(config, plan)
    batch = random_batch(config.vocab_size, rows=BATCH, tokens=TOKENS)
    loss, truth = reference_gradients(config, weights_of(engine), batch)
    result = engine.train_step(batch, 0.0).result()
    assert result.loss == pytest.approx(loss, rel=1e-6)
    got = gradients_of(engine)
    engine.close()
    assert all(torch.isfinite(tensor).all() for tensor in got.values())
    for name, tensor in truth.items():
        assert relative_error(got[name], tensor) < 1e-5, name
