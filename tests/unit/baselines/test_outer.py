"""The rivals' embedding: its gradient holds every occurrence of a token."""

from __future__ import annotations

import pytest
import torch
from streaming import small_config

from lazytrain.baselines.host_parts import host_part
from lazytrain.baselines.outer import OuterParts
from lazytrain.models.decoder import Decoder

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def outer_parts(device: torch.device, dtype: torch.dtype):
    """Return embedding and head of a small model, and the embedding's host side."""
    config = small_config("7B-mini", layers=1)
    decoder = Decoder(config)
    first, last = decoder.parts[0], decoder.parts[-1]
    hosts = [host_part(decoder, part, 0, dtype, device, None) for part in (first, last)]
    return OuterParts(decoder, *hosts, device), hosts[0], config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DEVICES)
def test_no_occurrence_of_a_token_is_lost(name: str, dtype: torch.dtype) -> None:
    """20,000 rows of one token: added one by one in bf16, 4 % of the sum are left."""
    device = torch.device(name)
    outer, host, config = outer_parts(device, dtype)
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((20, 1000), 7)
    ids[:, ::10] = torch.randint(300, (20, 100), generator=generator)
    rows = 1 + 0.5 * torch.randn(20, 1000, config.hidden_size, generator=generator)
    gradient = (1e-4 * rows).to(dtype)
    outer.upload()
    outer.embedding_backward(ids.to(device), gradient.to(device))
    outer.embedding_backward(ids.to(device), gradient.to(device))  # as a head's does
    outer.download()
    if name == "cuda":
        torch.cuda.synchronize()
    wanted = torch.zeros(config.vocab_size, config.hidden_size, dtype=torch.float64)
    wanted.index_add_(0, ids.flatten(), gradient.flatten(0, 1).double())
    found = host.gradient[: wanted.numel()].view_as(wanted).double()
    far = 1e-4 + 2 * torch.finfo(dtype).eps
    assert torch.allclose(found, 2 * wanted, rtol=far, atol=1e-7)
    assert found[7].mean() == pytest.approx(2 * 18000e-4, rel=0.02)
