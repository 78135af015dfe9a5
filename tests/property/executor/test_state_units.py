"""State cut into units: any tensors, any cut, any master give the whole part's bits."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrain.config import OptimizerSettings
from lazytrain.executor.layout import Layout
from lazytrain.executor.state_home import StreamedState, cut
from lazytrain.models.decoder import Decoder
from lazytrain.models.scales import model_config
from lazytrain.optim.adamw import HostAdamW
from lazytrain.optim.state import BLOCK, TensorSlice
from lazytrain.schedule.plan import OptimizerState, Part
from lazytrain.schedule.state_home import part_bytes
from lazytrain.tiers.extents import round_up
from lazytrain.tiers.tier import Ticket

SIZES = st.sampled_from([1, 63, 511, 512, 513, 4095, 4096, 4097, 10_000])
MASTERS = st.sampled_from(["fp32-split", "bf16", "bf16-stochastic"])


class MemoryTier:
    """Tensors in a dictionary, copied at once."""

    capacity_bytes = 0
    used_bytes = 0
    backend = "memory"

    def __init__(self):
        self.held = {}

    def put(self, key, data):
        self.held[key] = data.clone()
        return self.done(data)

    def fetch(self, key, out):
        out.copy_(self.held[key])
        return self.done(out)

    @staticmethod
    def done(tensor):
        future = Future()
        future.set_result(None)
        return Ticket(future, tensor.numel())

    def release(self, key):
        del self.held[key]

    def close(self):
        self.held.clear()


def slices_of(sizes):
    """Return tensors that start at multiples of 128 elements."""
    slices, offset = [], 0
    for number, size in enumerate(sizes):
        slices.append(TensorSlice(f"t{number}", offset, size, 0.1 * (number % 2)))
        offset += -(-size // 128) * 128
    return slices, offset


@given(sizes=st.lists(SIZES, min_size=1, max_size=8), most=st.integers(1, 20_000))
@settings(max_examples=60)
def test_units_cover_each_element_once_in_whole_blocks(sizes, most):
    slices, _ = slices_of(sizes)
    units = cut("part", slices, [False] * len(slices), most)
    seen = [(run.tensor, run.start, run.end) for unit in units for run in unit.runs]
    assert seen == sorted(seen)
    for tensor, size in enumerate(sizes):
        mine = [(start, end) for index, start, end in seen if index == tensor]
        assert [0, *(end for _, end in mine)] == [*(start for start, _ in mine), size]
        assert all(start % BLOCK == 0 for start, _ in mine)
    limit = max(most // BLOCK, 1) * BLOCK
    for unit in units:
        assert sum(run.end - run.start for run in unit.runs) <= limit
    assert len({unit.name for unit in units}) == len(units)


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=5),
    most=st.integers(1, 20_000),
    master=MASTERS,
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_streamed_updates_are_the_whole_parts(sizes, most, master, wide, seed):
    slices, numel = slices_of(sizes)
    generator = torch.Generator().manual_seed(seed)
    eight_bit = [(number + seed) % 2 == 0 for number in range(len(sizes))]
    start = torch.randn(numel, generator=generator)
    dtype = torch.float32 if wide else torch.bfloat16
    adamw = HostAdamW(OptimizerSettings(master=master, threads=1), dtype)
    whole, streamed = start.to(dtype), start.to(dtype)
    state = adamw.new_state(whole, slices, eight_bit)
    stream = StreamedState(
        adamw,
        MemoryTier(),
        {"part": streamed},
        {"part": slices},
        {"part": eight_bit},
        unit_parameters=most,
        poison=True,
    )
    for step in (1, 2, 3):
        gradient = torch.randn(numel, generator=generator).to(dtype)
        numbers = {"step": step, "learning_rate": 1e-2, "scale": 0.5}
        adamw.update(state, gradient, **numbers)
        stream.update("part", gradient, **numbers)
    assert torch.equal(streamed, whole)
    found = {name: tensor.load() for name, tensor in stream.tensors().items()}
    assert found.keys() == {f"part/{name}" for name in state.tensors()}
    for name, tensor in state.tensors().items():
        assert torch.equal(found[f"part/{name}"], tensor), name
        stream.load("part", name, torch.zeros_like(tensor))
    assert not any(tensor.load().any() for tensor in stream.tensors().values())


@pytest.mark.parametrize("name", ["Qwen2.5-3B", "Qwen3.6-27B", "3B-mini"])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_reserved_space_holds_the_state_of_real_models(name, eight_bit):
    for part in Decoder(model_config(name)).parts:
        layout = Layout.of(part.tensors, 2)
        slices = [TensorSlice(f.name, f.offset, f.numel, 0.0) for f in layout.fields]
        needed = sum(
            round_up(tensor.nbytes)
            for unit in cut(part.name, slices, [eight_bit] * len(slices), 16 << 20)
            for tensor in unit.blank(has_remainder=True).values()
        )
        planned = Part(
            name=part.name,
            kind=part.kind,
            num_parameters=part.num_parameters,
            weight_bytes=0,
            weights="streamed",
            gradient={"dtype": "fp32", "home": "cpu"},
            optimizer_state=OptimizerState(
                home="nvme",
                format="8bit" if eight_bit else "fp32",
                master="fp32-split",
            ),
        )
        assert needed <= part_bytes(planned) <= 1.1 * needed + (4 << 20)
