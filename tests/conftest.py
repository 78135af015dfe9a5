"""Settings of the whole suite, made before torch is loaded."""

import os

# Spinning OpenMP workers of two test processes would starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
