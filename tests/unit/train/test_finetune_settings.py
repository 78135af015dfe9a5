"""Bounds of the fine-tuning's configuration."""

import pytest
from pydantic import ValidationError

from lazytrain.train.finetune_settings import FineTune


def _settings(**changes):
    given = {"model": "m", "out": "o", "batch": 1, "seq_len": 8, "learning_rate": 1e-5}
    return FineTune.model_validate(given | changes)


def test_epochs_have_a_bound():
    assert _settings(num_epochs=2.5).num_epochs == 2.5
    assert _settings(num_epochs=10_000).num_epochs == 10_000
    for epochs in (1e300, 10_001, 0, float("inf"), float("nan")):
        with pytest.raises(ValidationError, match="num_epochs"):
            _settings(num_epochs=epochs)
