"""The numbers of one AdamW step that are the same for every element."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput


@dataclass(frozen=True)
class StepConstants:
    """Hyper-parameters of one step, with the bias corrections worked out in fp64.

    ``scale`` is the clip factor, ``step`` counts from 1.
    """

    step: int
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    step_size: float
    root_bias_correction2: float
    scale: float

    @classmethod
    def make(
        cls, settings: OptimizerSettings, step: int, learning_rate: float, scale: float
    ) -> StepConstants:
        """Check a step's numbers and derive the rest.

        Raises:
            InvalidInput: If the step is below 1, or the learning rate or the clip
                factor is negative or not finite; nothing has been written then.
        """
        if step < 1:
            raise InvalidInput("step", step, "steps count from 1")
        for field, value in (("learning_rate", learning_rate), ("scale", scale)):
            if not (math.isfinite(value) and value >= 0):
                remedy = "must be finite and not negative; skip the step instead"
                raise InvalidInput(field, value, remedy)
        beta1, beta2 = settings.betas
        return cls(
            step=step,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=settings.eps,
            step_size=learning_rate / (1 - beta1**step),
            root_bias_correction2=math.sqrt(1 - beta2**step),
            scale=scale,
        )

    def keep(self, weight_decay: float) -> float:
        """Return what decoupled weight decay leaves of a weight."""
        return 1 - self.learning_rate * weight_decay
