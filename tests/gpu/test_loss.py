"""The fused loss kernel against torch, in fp32 and bf16."""

import pytest
import torch

from lazytrain.executor.cross_entropy import cross_entropy_


@pytest.mark.parametrize("classes", [5, 8192, 8193, 151936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_and_loss_match_torch(classes, dtype):
    generator = torch.Generator("cuda").manual_seed(classes)
    logits = torch.randn(33, classes, device="cuda", generator=generator) * 4
    logits = logits.to(dtype)
    labels = torch.randint(0, classes, (33,), device="cuda", generator=generator)
    leaf = logits.double().requires_grad_()
    truth = torch.nn.functional.cross_entropy(leaf, labels, reduction="none")
    (truth.sum() * 0.25).backward()
    losses = cross_entropy_(logits, labels, 0.25)
    torch.testing.assert_close(losses.double(), truth.detach(), rtol=1e-5, atol=1e-5)
    error = (logits.double() - leaf.grad).norm() / leaf.grad.norm()
    assert error < (1e-5 if dtype == torch.float32 else 4e-3)
