"""Our forward of the linear-attention mixer equals the library's module."""

import copy
import functools

import pytest
import torch
from streaming import relative_error
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from lazytrain.executor.bodies import Bodies
from lazytrain.executor.packing import Borders, ConditionMaker
from lazytrain.models.decoder import Decoder
from lazytrain.models.mixer import is_known_mixer, mix, own_mixers, short_convolution
from lazytrain.models.scales import model_config

# Their gradients are sums of cancelling terms; fp32 keeps few digits of them.
DECAY = ("A_log", "dt_bias", "in_proj_a.weight")


@pytest.fixture(scope="module")
def mixer():
    """The library's mixer with random weights and slow decays."""
    torch.manual_seed(0)
    config = model_config("27B-mini")
    config.num_hidden_layers, config.layer_types = 1, config.layer_types[:1]
    module = AutoModelForCausalLM.from_config(config).model.layers[0].linear_attn
    with torch.no_grad():
        module.A_log.uniform_(-3, 0)
        module.conv1d.weight.normal_(0, 0.5)
        for projection in (module.in_proj_a, module.in_proj_b, module.in_proj_qkv):
            projection.weight.normal_(0, 0.2)
    return module


def outcome(module, hidden, dtype, forward=None):
    """Output and gradients of a weighted sum of it, by name."""
    module = copy.deepcopy(module).to(dtype)
    leaf = hidden.to(dtype).requires_grad_()
    run = module if forward is None else forward.__get__(module)
    output = run(hidden_states=leaf)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(
        (output * weights.to(output)).sum(), (leaf, *parameters)
    )
    return {"output": output.detach()} | dict(
        zip(("hidden", *names), found, strict=True)
    )


def ours(module, hidden, dtype):
    """The same with our forward."""
    return outcome(module, hidden, dtype, mix)


def hidden_states(length=150, rows=2):
    return torch.randn(rows, length, 128, generator=torch.Generator().manual_seed(1))


def test_equals_the_library_in_fp32(mixer):
    hidden = hidden_states()
    found = ours(mixer, hidden, torch.float32)
    for name, truth in outcome(mixer, hidden, torch.float32).items():
        limit = 1e-4 if name in DECAY else 1e-5
        assert relative_error(found[name], truth) < limit, name


def test_is_as_close_to_float64_as_the_library(mixer):
    hidden = hidden_states()
    truth = ours(mixer, hidden, torch.float64)
    found = ours(mixer, hidden, torch.float32)
    theirs = outcome(mixer, hidden, torch.float32)
    for name, value in truth.items():
        error = relative_error(found[name], value)
        assert error < max(1e-5, 2 * relative_error(theirs[name], value)), name


def test_equals_the_library_in_bf16(mixer):
    hidden = hidden_states()
    truth = ours(mixer, hidden, torch.float64)
    found = ours(mixer, hidden, torch.bfloat16)
    theirs = outcome(mixer, hidden, torch.bfloat16)
    for name, value in truth.items():
        error = relative_error(found[name], value)
        assert error < 1.2 * relative_error(theirs[name], value) + 1e-3, name


def test_the_convolution_equals_torch():
    inputs, weight = torch.randn(2, 21, 6), torch.randn(6, 4)
    found = short_convolution(inputs, weight, None)
    padded = F.conv1d(inputs.transpose(1, 2), weight[:, None], padding=3, groups=6)[
        ..., :21
    ]
    assert torch.allclose(found, padded.transpose(1, 2), atol=1e-6)
    assert short_convolution(inputs[:, :2], weight, None).shape == (2, 2, 6)


def test_the_convolution_stops_at_a_documents_start():
    inputs, weight = torch.randn(1, 12, 6), torch.randn(6, 4)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]])
    found = short_convolution(inputs, weight, positions)
    for start, end in ((0, 5), (5, 7), (7, 12)):
        alone = short_convolution(inputs[:, start:end], weight, None)
        assert torch.equal(found[:, start:end], alone)


def test_only_the_known_layout_is_taken(mixer):
    assert is_known_mixer(mixer)
    other = copy.deepcopy(mixer)
    other.in_proj_extra = torch.nn.Linear(2, 2)
    assert not is_known_mixer(other)
    other = copy.deepcopy(mixer)
    other.activation = "gelu"
    assert not is_known_mixer(other)
    assert own_mixers(torch.nn.Linear(2, 2)) == 0


def test_bodies_of_linear_layers_run_our_mixer(monkeypatch):
    """A mixer that fell back to the library's would be four times slower."""
    import lazytrain.models.mixer as module

    calls = []
    rule = module.gated_delta_rule
    monkeypatch.setattr(
        module, "gated_delta_rule", lambda *a: (calls.append(1), rule(*a))[1]
    )
    decoder = Decoder(model_config("27B-mini"))
    part = decoder.parts[1]
    bodies = Bodies(decoder, {part.layer_type: list(part.tensors)}, "eager")
    body = bodies.of(part.layer_type, "all", graph=True)
    cpu = torch.device("cpu")
    weights = list(decoder.initial_tensors(part, 0, cpu).values())
    body(hidden_states(16), *decoder.rotary(16, cpu, torch.float32), weights, None)
    assert calls == [1]


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_a_layer_compiles_as_one_graph_packed_or_not(kind, monkeypatch):
    """The graphs without the code generator, which takes minutes on few cores."""
    monkeypatch.setattr(
        torch, "compile", functools.partial(torch.compile, backend="aot_eager")
    )
    cpu, tokens = torch.device("cpu"), 70
    decoder = Decoder(model_config("27B-mini"))
    part = decoder.parts[1 + decoder.layer_types.index(kind)]
    bodies = [
        Bodies(decoder, {kind: list(part.tensors)}, name, "auto").of(
            kind, "all", graph=True
        )
        for name in ("eager", "compile")
    ]
    tensors = decoder.initial_tensors(part, 0, cpu).values()
    weights = [tensor.requires_grad_() for tensor in tensors]
    rotary = decoder.rotary(tokens, cpu, torch.float32)
    positions = torch.cat([torch.arange(30), torch.arange(40)]).repeat(2, 1)
    owners = torch.tensor([0] * 30 + [1] * 40).repeat(2, 1)
    borders = Borders(positions, owners)
    packed = ConditionMaker(decoder, cpu).of(rotary, borders, 2, 2)[0]
    cases = [(*rotary, None), (packed.cos, packed.sin, packed.masks[kind])]
    outputs = []
    for cos, sin, mask in (*cases, *cases):
        plain, found = (
            body(hidden_states(tokens), cos, sin, weights, mask) for body in bodies
        )
        assert relative_error(found.detach(), plain.detach()) < 1e-5
        found.sum().backward()
        outputs.append(plain.detach())
    assert relative_error(outputs[1], outputs[0]) > 1e-4
