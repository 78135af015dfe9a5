"""The learning rate of each step: warm-up, then constant, linear or cosine decay."""

from __future__ import annotations

import math

from lazytrain.config import ScheduleSettings


def warmup_steps(settings: ScheduleSettings, num_steps: int) -> int:
    """Return how many steps the learning rate rises for."""
    return round(settings.warmup_fraction * num_steps)


def learning_rate(
    step: int, num_steps: int, peak: float, settings: ScheduleSettings
) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``num_steps``.

    Warm-up reaches the peak at its last step; a decay reaches ``min_ratio`` times the
    peak at the run's last step.
    """
    rising = warmup_steps(settings, num_steps)
    if step < rising:
        return peak * (step + 1) / rising
    if settings.kind == "constant":
        return peak
    steps_left = max(1, num_steps - 1 - rising)
    progress = min(1.0, (step - rising) / steps_left)
    share = 1 - progress
    if settings.kind == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    return peak * (settings.min_ratio + (1 - settings.min_ratio) * share)
