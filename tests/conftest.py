"""Settings of the whole suite, made before torch is loaded."""

import os

from hypothesis import HealthCheck, settings

# Spinning OpenMP workers of two test processes would starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine is slow at any moment: no test passes or fails by the clock.
settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
