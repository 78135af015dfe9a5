"""The state of all random number generators, as text and back."""

from __future__ import annotations

import base64
import json
import random

import numpy as np
import torch
from torch import Tensor

from lazytrain.train.checkpoint import RandomState


def _text(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def random_state() -> RandomState:
    """Return the state of torch's, Python's and NumPy's global generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    kind, keys, place, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return RandomState(
        torch=_text(torch.get_rng_state()),
        cuda=tuple(_text(state) for state in cuda),
        python=json.dumps(random.getstate()),
        numpy=json.dumps(
            [str(kind), np.asarray(keys).tolist(), place, has_gauss, gauss]
        ),
    )


def set_random_state(state: RandomState) -> None:
    """Put the generators back to a saved state.

    GPUs that the saving machine did not have keep their state.
    """
    torch.set_rng_state(_tensor(state.torch))
    if torch.cuda.is_available():
        for device, text in zip(
            range(torch.cuda.device_count()), state.cuda, strict=False
        ):
            torch.cuda.set_rng_state(_tensor(text), device)
    version, internal, gauss_next = json.loads(state.python)
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, place, has_gauss, gauss = json.loads(state.numpy)
    words = np.array(keys, dtype=np.uint32)
    np.random.set_state((kind, words, place, has_gauss, gauss))  # noqa: NPY002
