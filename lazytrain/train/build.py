"""From a row of the run sheet to an engine: one table of all systems.

A system's module is imported when its row runs, so that an optional package that is
missing stops only the rows that need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

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
from lazytrain.schedule.plan import Home, Plan
from lazytrain.train.source import Source
from lazytrain.units import MIB

# system -> function that takes an EngineSetup; systems that run a plan are not here
RIVALS = {
    "megatrain": "lazytrain.baselines.megatrain:build",
    "megatrain-single-recompute": "lazytrain.baselines.megatrain:build_single",
    "zero3-offload": "lazytrain.baselines.zero3:build",
    "zero3-offload-liger": "lazytrain.baselines.zero3:build_liger",
    "zero-infinity": "lazytrain.baselines.zero_infinity:build",
    "resident": "lazytrain.baselines.resident:build",
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
    )


class WithTier:
    """An engine together with the NVMe tier that only it uses."""

    def __init__(self, engine: Engine, tier: Any) -> None:
        self._engine = engine
        self._tier = tier

    def __getattr__(self, name: str) -> Any:
        """Hand everything but closing to the engine."""
        return getattr(self._engine, name)

    def close(self) -> None:
        """Close the engine, then the tier it used."""
        try:
            self._engine.close()
        finally:
            self._tier.close()


def _streaming(setup: EngineSetup, plan: Plan) -> Engine:
    """Return our executor on a plan, with a tier if the plan has NVMe boundaries."""
    from lazytrain.executor.engine import StreamingEngine

    tier: Any = None
    on_nvme = [b.size_bytes for b in plan.boundaries if b.home == Home.NVME]
    if on_nvme:
        from lazytrain.tiers.nvme import NvmeTier

        tier = NvmeTier(setup.scratch, sum(size + MIB for size in on_nvme))
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
    if tier is None:
        return engine
    owner: Any = WithTier(engine, tier)
    return cast("Engine", owner)


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
    setup = setup_for(row, config, source)
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
