"""From a row of the run sheet to an engine: one table of all systems.

A system's module is imported when its row runs, so that an optional package that is
missing stops only the rows that need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from lazytrain import systems
from lazytrain.config import OptimizerSettings, PipelineConfig, RunRow
from lazytrain.errors import InvalidInput
from lazytrain.executor.protocol import Engine
from lazytrain.profile.hardware import (
    device_for,
    dtype_of,
    scratch_folder,
    settings_for,
)
from lazytrain.profile.setup import EngineSetup
from lazytrain.schedule.plan import Plan
from lazytrain.train.scratch import tier_for, with_tier
from lazytrain.train.source import Source

# system -> function that takes an EngineSetup; systems that run a plan are not here
RIVALS = {
    "megatrain": "lazytrain.baselines.megatrain:build",
    "megatrain-single-recompute": "lazytrain.baselines.megatrain:build_single",
    "megatrain-milp": "lazytrain.baselines.megatrain:build_planned",
    "megatrain-hybrid8bit": "lazytrain.baselines.megatrain:build_hybrid",
    "zero3-offload": "lazytrain.baselines.zero3:build",
    "zero3-offload-liger": "lazytrain.baselines.zero3:build_liger",
    "zero-infinity": "lazytrain.baselines.zero_infinity:build",
    "resident": "lazytrain.baselines.resident:build",
    "resident-no-recompute": "lazytrain.baselines.resident:build_no_recompute",
}
PLANNED = systems.names("lazytrain")
FRACTIONS = {"adamw": 0.0, "cpu_adamw_8bit": 1.0}


def optimizer_for(system: str, settings: OptimizerSettings) -> OptimizerSettings:
    """Return a system's optimizer settings: its own state format, or the configured.

    ``-no-hybrid8bit`` has fp32 state only, ``-8bit`` no other than 8-bit state.
    """
    kind = systems.BY_NAME[system].optimizer if system in PLANNED else ""
    if not kind:
        return settings
    return settings.model_copy(
        update={"type": kind, "eight_bit_fraction": FRACTIONS[kind]}
    )


def setup_for(row: RunRow, config: PipelineConfig, source: Source) -> EngineSetup:
    """Return what the row's engine is built from."""
    executor = settings_for(config, row.accelerator).executor
    return EngineSetup(
        model_config=source.config,
        state_dict=source.state_dict,
        optimizer=optimizer_for(row.system, config.optimizer),
        executor=executor,
        batch=row.batch,
        seq_len=row.seq_len,
        dtype=dtype_of(executor.dtype),
        device=device_for(row.accelerator),
        seed=config.seed,
        scratch=scratch_folder(config),
        nvme=config.nvme,
    )


def _streaming(setup: EngineSetup, plan: Plan) -> Engine:
    """Return our executor on a plan, with a tier if the plan needs one."""
    from lazytrain.executor.engine import StreamingEngine

    tier = tier_for(setup, plan)
    try:
        engine: Engine = StreamingEngine(
            setup.model_config,
            plan,
            setup.optimizer,
            dtype=setup.dtype,
            device=setup.device,
            seed=setup.seed,
            state_dict=setup.state_dict,
            tier=tier,
        )
    except BaseException:
        if tier is not None:
            tier.close()
        raise
    return engine if tier is None else with_tier(engine, tier)


def build_engine(
    row: RunRow, config: PipelineConfig, plan: Plan | None, source: Source
) -> Engine:
    """Build the engine of one row.

    Args:
        row: System, batch and length.
        config: Settings of the pipeline.
        plan: The plan to run; rivals need none.
        source: The model and its weights.

    Raises:
        InvalidInput: If the system is unknown or its plan is missing.
        PlanMismatch: If the plan was made for another model or batch.
        OutOfMemory: If a tier cannot hold what the engine allocates.
    """
    setup = replace(setup_for(row, config, source), plan=plan)
    if row.system in PLANNED:
        if plan is None:
            raise InvalidInput("plan", None, f"{row.system} runs a plan: give --plan")
        return _streaming(setup, plan)
    if row.system not in RIVALS:
        known = ", ".join((*PLANNED, *RIVALS))
        raise InvalidInput("system", row.system, f"choose one of {known}")
    module, _, function = RIVALS[row.system].partition(":")
    build: Callable[[EngineSetup], Engine] = getattr(
        importlib.import_module(module), function
    )
    return build(setup)
