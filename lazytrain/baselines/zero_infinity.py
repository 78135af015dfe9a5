"""ZeRO-Infinity: ZeRO-3 with optimizer state and parameters on NVMe, by DeepSpeed."""

from __future__ import annotations

import shutil
import tempfile

from lazytrain.baselines.zero3 import ZeroEngine, ZeroOptions
from lazytrain.profile.setup import EngineSetup


class ZeroInfinityEngine(ZeroEngine):
    """ZeRO-3 on a folder of the scratch disk that is removed with the engine."""

    def __init__(self, setup: EngineSetup) -> None:
        setup.scratch.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.mkdtemp(dir=setup.scratch, prefix="zero-infinity-")
        try:
            config = setup.model_config
            widest = max(config.vocab_size, config.intermediate_size)
            largest = widest * config.hidden_size
            options = ZeroOptions(nvme_path=self._folder, largest_parameter=largest)
            super().__init__(setup, options)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def close(self) -> None:
        """Release DeepSpeed's engine and remove its files."""
        try:
            super().close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def build(setup: EngineSetup) -> ZeroInfinityEngine:
    """Build the row ``zero-infinity``."""
    return ZeroInfinityEngine(setup)
