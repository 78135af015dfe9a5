"""The chunked delta rule equals its token-by-token definition, gradients too."""

import pytest
import torch
from streaming import relative_error
from torch.nn import functional as F

from lazytrain.models.delta_rule import UnitLowerInverse, gated_delta_rule

NAMES = ("query", "key", "value", "log_decay", "beta")


def token_by_token(query, key, value, log_decay, beta, starts=None):
    """The recurrence as it is written down, one token after the other."""
    shared = value.shape[2] // query.shape[2]
    query = query.repeat_interleave(shared, 2)
    key = key.repeat_interleave(shared, 2)
    rows, length, heads, width = key.shape
    state = key.new_zeros(rows, heads, width, value.shape[3])
    outputs = []
    for t in range(length):
        if starts is not None:
            state = state * (1 - starts[:, t].to(state))[:, None, None, None]
        else:
            state = state * 1
        state = state * log_decay[:, t].exp()[..., None, None]
        held = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        write = beta[:, t, :, None] * (value[:, t] - held)
        state = state + key[:, t, :, :, None] * write[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outputs, 1)


def inputs_of(length, key_heads, value_heads, width, *, rows=2, decay=0.3, seed=0):
    """Random inputs as a layer makes them: unit keys, scaled queries."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    def uniform(*shape):
        return torch.rand(shape, generator=generator)

    keys = (rows, length, key_heads, width)
    values = (rows, length, value_heads)
    return (
        F.normalize(draw(*keys), dim=-1) * width**-0.5,
        F.normalize(draw(*keys), dim=-1),
        draw(*values, width),
        -decay * uniform(*values),
        uniform(*values),
    )


def with_gradients(rule, inputs, dtype=torch.float32, **keywords):
    """Return the output and the gradients of a weighted sum of it."""
    leaves = [x.to(dtype).detach().requires_grad_() for x in inputs]
    output = rule(*leaves, **keywords)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    gradients = torch.autograd.grad((output * weights.to(dtype)).sum(), leaves)
    return dict(zip(("output", *NAMES), (output, *gradients), strict=True))


def worst(found, truth):
    return max(relative_error(found[n].detach(), truth[n].detach()) for n in truth)


def library_rule(*inputs):
    """The Hugging Face reference; it scales the queries itself."""
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    query, key, value, *rest = inputs
    # Some releases leave repeating the heads to the caller.
    shared = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(shared, 2) for x in (query, key))
    scaled = query * query.shape[-1] ** 0.5
    return module.torch_chunk_gated_delta_rule(scaled, key, value, *rest)[0]


@pytest.mark.parametrize("length", [1, 40, 64, 150])
def test_equals_the_recurrence_in_float64(length):
    inputs = inputs_of(length, 2, 4, 16)
    ours = with_gradients(gated_delta_rule, inputs, torch.float64)
    truth = with_gradients(token_by_token, inputs, torch.float64)
    assert worst(ours, truth) < 1e-12


@pytest.mark.parametrize("heads", [(2, 4, 16), (16, 48, 128)])
def test_equals_the_library_in_fp32(heads):
    rows = 1 if heads[2] == 128 else 2
    inputs = inputs_of(200, *heads, rows=rows)
    ours = with_gradients(gated_delta_rule, inputs)
    theirs = with_gradients(library_rule, inputs)
    assert worst(ours, theirs) < 1e-5


def test_bf16_inputs_are_computed_in_fp32():
    inputs = [x.bfloat16().float() for x in inputs_of(150, 2, 4, 16)]
    exact = gated_delta_rule(*inputs)
    low = gated_delta_rule(*[x.bfloat16() for x in inputs])
    assert low.dtype == torch.bfloat16
    assert torch.equal(low, exact.bfloat16())


@pytest.mark.parametrize("decay", [0.0, 1e-3, 30.0, 1e4])
@pytest.mark.parametrize("beta", [1e-4, 1.0])
def test_stress_gives_no_nan_and_stays_exact(decay, beta):
    """Repeated keys with full writes are where a power series overflows."""
    query, key, value, log_decay, _ = inputs_of(150, 2, 4, 16, decay=1.0)
    key = key[:, :1].expand_as(key) + 1e-3 * key
    key = F.normalize(key, dim=-1)
    strength = torch.full(log_decay.shape, beta)
    inputs = (query, key, value, log_decay * decay, strength)
    ours = with_gradients(gated_delta_rule, inputs)
    truth = with_gradients(token_by_token, inputs, torch.float64)
    assert all(torch.isfinite(x).all() for x in ours.values())
    # A decay's own gradient vanishes with it and has no digits to compare.
    if decay > 1:
        ours.pop("log_decay"), truth.pop("log_decay")
    assert worst(ours, truth) < 1e-4


def test_a_start_empties_the_state():
    inputs = inputs_of(200, 2, 4, 16)
    starts = torch.zeros(2, 200)
    starts[0, [0, 3, 64, 65, 150]] = 1
    starts[1, [0, 127]] = 1
    ours = with_gradients(gated_delta_rule, inputs, torch.float64, starts=starts)
    truth = with_gradients(token_by_token, inputs, torch.float64, starts=starts)
    assert worst(ours, truth) < 1e-12


def test_a_start_after_huge_decays_leaks_nothing():
    """The sum of decays before the start is -1e6: it must not reach what follows."""
    query, key, value, log_decay, beta = inputs_of(128, 2, 4, 16)
    log_decay[:, :20] *= 1e6
    starts = torch.zeros(2, 128)
    starts[:, 20] = 1
    inputs = (query, key, value, log_decay, beta)
    found = with_gradients(gated_delta_rule, inputs, starts=starts)
    assert all(torch.isfinite(x).all() for x in found.values())
    log_decay = log_decay.clone()
    log_decay[:, :20] = 0
    calm = gated_delta_rule(query, key, value, log_decay, beta, starts)
    assert torch.equal(found["output"][:, 20:], calm[:, 20:])


def test_many_starts_cost_no_precision():
    inputs = inputs_of(256, 2, 4, 16)
    starts = torch.zeros(2, 256)
    starts[:, ::6] = 1
    ours = with_gradients(gated_delta_rule, inputs, starts=starts)
    truth = with_gradients(token_by_token, inputs, torch.float64, starts=starts)
    assert worst(ours, truth) < 2e-6


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_the_inverse_and_its_gradient(width):
    generator = torch.Generator().manual_seed(width)
    lower = torch.randn(3, width, width, generator=generator, dtype=torch.float64)
    lower = (0.3 * lower).tril(-1).requires_grad_()
    eye = torch.eye(width, dtype=torch.float64)
    ours, truth = UnitLowerInverse.apply(lower), torch.linalg.inv(eye + lower)
    assert relative_error(ours.detach(), truth.detach()) < 1e-11
    weights = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    ours, truth = (
        torch.autograd.grad((inverse * weights).sum(), lower)[0].tril(-1)
        for inverse in (ours, truth)
    )
    assert relative_error(ours, truth) < 1e-10


def products(graph_module):
    """Matrix products of a graph."""
    names = [str(n.target) for n in graph_module.graph.nodes]
    return sum("bmm" in name for name in names)


def test_compiles_as_one_graph_with_few_products():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    counts = []

    def count(graph_module, _):
        counts.append(products(graph_module))
        return make_boxed_func(graph_module.forward)

    torch._dynamo.reset()
    compiled = torch.compile(
        gated_delta_rule,
        fullgraph=True,
        dynamic=False,
        backend=aot_autograd(fw_compiler=count, bw_compiler=count),
    )
    inputs = inputs_of(256, 2, 4, 16)
    found = with_gradients(compiled, inputs)
    assert worst(found, with_gradients(gated_delta_rule, inputs)) < 1e-6
    chunks = 256 // 64
    forward, backward = counts
    assert forward <= 2 * chunks + 17
    assert backward <= 4 * chunks + 17
