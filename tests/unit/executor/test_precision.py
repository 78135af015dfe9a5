"""TF32 is on inside a bf16 linear-attention layer on CUDA, and nowhere else."""

import pytest
import torch

from lazytrain.executor import precision


class Stub:
    """A tensor's dtype and device, so that the rule is tested without a GPU."""

    def __init__(self, dtype, is_cuda):
        self.dtype = dtype
        self.is_cuda = is_cuda


@pytest.mark.parametrize(
    ("kind", "dtype", "is_cuda", "expected"),
    [
        ("linear_attention", torch.bfloat16, True, "high"),
        ("linear_attention", torch.float32, True, "highest"),
        ("linear_attention", torch.bfloat16, False, "highest"),
        ("full_attention", torch.bfloat16, True, "highest"),
    ],
)
def test_precision_holds_inside_and_ends_after_a_fault(kind, dtype, is_cuda, expected):
    assert torch.get_float32_matmul_precision() == "highest"

    def fail():
        with precision.matmul_precision(kind, Stub(dtype, is_cuda)):
            assert torch.get_float32_matmul_precision() == expected
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_float32_matmul_precision() == "highest"
