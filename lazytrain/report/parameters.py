"""How many parameters a model of the run sheet has, known without any run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from lazytrain.errors import InvalidInput
from lazytrain.models.scales import model_config
from lazytrain.records import RunRecord
from lazytrain.schedule.shapes import model_shape


@cache
def num_parameters(model: str) -> int:
    """Return all parameters of a model, tied weights counted once.

    Raises:
        InvalidInput: If the model is unknown.
    """
    return model_shape(model_config(model).to_dict(), model).num_parameters


def refuse_other_counts(records: Iterable[RunRecord]) -> None:
    """Refuse a run that counted other parameters than its model has.

    Raises:
        InvalidInput: With both counts, or if the model is unknown.
    """
    for record in records:
        expected = num_parameters(record.model)
        if record.status == "ok" and record.num_parameters != expected:
            row = f"{record.accelerator}/{record.scale}/{record.system}"
            remedy = f"{record.model} has {expected} (record of {row}); run it again"
            raise InvalidInput("num_parameters", record.num_parameters, remedy)
