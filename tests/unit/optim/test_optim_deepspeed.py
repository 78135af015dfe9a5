import pytest
import torch

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim import deepspeed
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.state import TensorSlice

SETTINGS = OptimizerSettings(type="deepspeed_adam", master="bf16", learning_rate=1e-3)


class Recorder:
    """Stands where the compiled operator would, and records what reaches it."""

    def __init__(self):
        self.updates = []

    def create_adam(self, *arguments):
        pass

    def adam_update(self, *arguments):
        self.updates.append(arguments)


@pytest.fixture
def operator(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(deepspeed, "load_operator", lambda: recorder)
    return recorder


def make(dtype):
    optimizer = HostAdamW(SETTINGS, dtype)
    slices = [TensorSlice("a", 0, 1000, 0.1), TensorSlice("b", 1024, 500, 0.0)]
    return optimizer, optimizer.new_state(
        torch.randn(1600).to(dtype), slices, [False] * 2
    )


def test_a_gradient_of_another_dtype_never_reaches_the_operator(operator):
    optimizer, state = make(torch.float32)
    assert optimizer.kernel == "deepspeed"
    with pytest.raises(InvalidInput, match="gradient"):
        optimizer.update(
            state, torch.ones(1600).bfloat16(), step=1, learning_rate=1e-3, scale=1.0
        )
    assert operator.updates == []


def test_the_split_master_and_eight_bit_state_are_refused(operator):
    with pytest.raises(InvalidInput, match="master"):
        HostAdamW(SETTINGS.model_copy(update={"master": "fp32-split"}), torch.bfloat16)
    optimizer = HostAdamW(SETTINGS, torch.bfloat16)
    with pytest.raises(InvalidInput, match="eight_bit"):
        optimizer.new_state(
            torch.zeros(8).bfloat16(), [TensorSlice("a", 0, 8, 0.0)], [True]
        )


def test_every_slice_reaches_the_operator_with_its_own_decay(operator):
    optimizer, state = make(torch.float32)
    flat = torch.arange(1600.0)
    optimizer.update(state, flat, step=3, learning_rate=1e-3, scale=0.5)
    decays = [arguments[6] for arguments in operator.updates]
    gradients = [arguments[9] for arguments in operator.updates]
    assert decays == [0.1, 0.0]
    assert torch.equal(gradients[1], 0.5 * flat[1024:1524])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_real_operator_equals_torch_adamw(dtype):
    optimizer, state = make(dtype)
    truth = [
        state.weight[p.offset : p.offset + p.numel].float().clone()
        for p in state.slices
    ]
    rival = torch.optim.AdamW(
        [
            {"params": [tensor], "weight_decay": piece.weight_decay}
            for tensor, piece in zip(truth, state.slices, strict=True)
        ],
        lr=1e-3,
    )
    for step in range(1, 11):
        flat = torch.randn(1600).to(dtype)
        for tensor, piece in zip(truth, state.slices, strict=True):
            tensor.grad = flat[piece.offset : piece.offset + piece.numel].float()
        rival.step()
        optimizer.update(state, flat, step=step, learning_rate=1e-3, scale=1.0)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for tensor, piece in zip(truth, state.slices, strict=True):
        ours = state.weight[piece.offset : piece.offset + piece.numel].float()
        torch.testing.assert_close(ours, tensor, rtol=tolerance, atol=tolerance)
