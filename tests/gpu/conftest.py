"""GPU tests are marked, and skipped with a reason where there is no device."""

import os
import pathlib

import pytest
import torch

HERE = pathlib.Path(__file__).parent
# cuBLAS reads it at its first call; deterministic kernels need it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(missing)
