"""A disk that is full is told with the file that found no room."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from lazytrain.train.tensor_files import write_tensors

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors(FULL, {"a": torch.zeros(1_000_000)})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(FULL))
