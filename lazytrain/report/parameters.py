"""How many parameters a model of the run sheet has, known without any run."""

from __future__ import annotations

from functools import cache

from lazytrain.models.scales import model_config
from lazytrain.schedule.shapes import model_shape


@cache
def num_parameters(model: str) -> int:
    """Return all parameters of a model, tied weights counted once.

    Raises:
        InvalidInput: If the model is unknown.
    """
    return model_shape(model_config(model).to_dict(), model).num_parameters
