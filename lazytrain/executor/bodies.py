"""One body per layer type: the layer's forward as a pure function of its weights.

All layers of a type run through the same function with their own weight views, so a
compiled body is compiled once per (layer type, save level) and reused. Layers of equal
shapes but other behaviour (sliding window, linear attention) have bodies of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from lazytrain.errors import InvalidInput, MissingExtra
from lazytrain.models.decoder import Decoder
from lazytrain.models.mixer import own_mixers

# (hidden, cos, sin, weights, mask) -> hidden
Body = Callable[[Tensor, Tensor, Tensor, Sequence[Tensor], Tensor | None], Tensor]


def layer_body(template: nn.Module, names: Sequence[str]) -> Body:
    """Return a template's forward as a function of its weights.

    Rows are padded on the right, so causal attention needs no mask: a real token never
    sees what comes after it. Packed rows and sliding windows come with one.

    Args:
        template: Parameterless decoder layer.
        names: Local parameter names in the order weights are passed.
    """

    def run(
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        weights: Sequence[Tensor],
        mask: Tensor | None,
    ) -> Any:
        output = functional_call(
            template,
            dict(zip(names, weights, strict=True)),
            (hidden,),
            {"position_embeddings": (cos, sin), "attention_mask": mask},
        )
        # Layers of transformers before version 5 return a tuple.
        return output[0] if isinstance(output, tuple) else output

    return run


def liger_template(template: nn.Module) -> nn.Module:
    """Swap a template's norms and gated MLP for Liger kernels.

    Raises:
        MissingExtra: If liger-kernel is not installed.
    """
    try:
        from liger_kernel.transformers.rms_norm import LigerRMSNorm
        from liger_kernel.transformers.swiglu import LigerSwiGLUMLP
    except ImportError as error:
        raise MissingExtra("liger", "body = liger needs liger-kernel") from error
    for name, child in list(template.named_modules()):
        kind = type(child).__name__
        if kind.endswith("RMSNorm") and "Qwen3_5" not in kind:
            eps = getattr(child, "variance_epsilon", 1e-6)
            with torch.device("meta"):
                norm = LigerRMSNorm(child.weight.shape[0], eps=eps)
            template.set_submodule(name, norm)
        elif kind.endswith("MLP"):
            child.forward = LigerSwiGLUMLP.forward.__get__(child)
    return template


# Share of the activations autograd would keep, by save level of a compiled body.
BUDGETS = {
    "inputs": 0.0,
    "keep-0.1": 0.1,
    "keep-0.2": 0.2,
    "keep-0.3": 0.3,
    "keep-0.4": 0.4,
    "keep-0.5": 0.5,
    "keep-0.6": 0.6,
    "keep-0.8": 0.8,
    "all": 1.0,
}


_numbers = itertools.count()


def _own_code(function: Body, name: str) -> Body:
    """Return a copy of a function under a code object of its own.

    Dynamo caches compiled graphs by code object: two closures of one function share a
    cache entry, and a second save level would silently run the first one's graph.
    """
    code = function.__code__.replace(co_name=f"{name}_{next(_numbers)}")
    return types.FunctionType(
        code, function.__globals__, name, None, function.__closure__
    )


# Attention backends by preference; tracing fixes the first one that can run.
ATTENTION = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
}
FALLBACKS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention_order(attention: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this backend is tried first.

    ``auto`` leaves torch's own order.

    Raises:
        InvalidInput: If the name is unknown.
    """
    if attention == "auto":
        return contextlib.nullcontext()
    if attention not in ATTENTION:
        remedy = f"choose auto or one of {', '.join(ATTENTION)}"
        raise InvalidInput("attention", attention, remedy)
    first = ATTENTION[attention]
    order = first + [backend for backend in FALLBACKS if backend not in first]
    context: contextlib.AbstractContextManager[None]
    context = sdpa_kernel(order, set_priority=True)
    return context


def num_graphs() -> int:
    """Return how many graphs Dynamo has captured in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def compiled_body(body: Body, layer_type: str, save_level: str, attention: str) -> Body:
    """Compile a body for one save level.

    The partitioner reads its budget while it compiles, which is at the first call; so
    the first call runs inside the patched configuration. The attention backend is
    fixed by the same tracing.
    """
    from torch._functorch import config as functorch_config
    from torch.compiler import config

    compiler_config: Any = config  # its `patch` is made at run time

    def run(
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        weights: Sequence[Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        return body(h, cos, sin, weights, mask)

    own = _own_code(run, f"{layer_type}_{save_level}".replace("-", "_"))
    compiled = torch.compile(own, fullgraph=True, dynamic=False)
    budget = BUDGETS[save_level]
    seen: set[tuple[torch.Size, bool]] = set()

    def call(
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        weights: Sequence[Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        kind = (h.shape, mask is None)
        if kind in seen:
            before = num_graphs()
            result = compiled(h, cos, sin, weights, mask)
            if num_graphs() != before:
                raise RuntimeError(
                    f"{own.__name__} was compiled again for {tuple(h.shape)}: the new "
                    "graph may keep other tensors than the plan counts on"
                )
            return result
        # The graph cache's key knows nothing of the attention backend.
        tagged = compiler_config.patch(cache_key_tag=f"attention={attention}")
        patched = functorch_config.patch(activation_memory_budget=budget)
        with tagged, patched, attention_order(attention):
            result = compiled(h, cos, sin, weights, mask)
        seen.add(kind)
        return result

    return call


class Bodies:
    """The bodies a plan needs, made on first use.

    Args:
        decoder: The model.
        names: Parameter names per layer type.
        kind: ``eager``, ``compile`` or ``liger``.
        attention: ``auto``, ``flash`` or ``cudnn``, for compiled bodies.

    Raises:
        InvalidInput: If a save level needs a compiled body, or dropout is on.
    """

    def __init__(
        self,
        decoder: Decoder,
        names: Mapping[str, Sequence[str]],
        kind: str,
        attention: str = "cudnn",
    ) -> None:
        self.kind = kind
        self._attention = attention
        self._plain: dict[str, Body] = {}
        self._compiled: dict[tuple[str, str], Body] = {}
        for layer_type, order in names.items():
            template = decoder.template(layer_type)
            template.train()
            own_mixers(template)
            if kind == "liger":
                template = liger_template(template)
            self._plain[layer_type] = layer_body(template, order)
        self._refuse_dropout(decoder.config)

    def _refuse_dropout(self, config: Any) -> None:
        """A mask redrawn by recomputation would make gradients wrong."""
        for field in ("attention_dropout", "hidden_dropout", "resid_pdrop"):
            rate = getattr(config, field, 0.0) or 0.0
            if rate > 0:
                raise InvalidInput(field, rate, "set it to 0: layers are recomputed")

    def keeps_graph(self, save_level: str) -> bool:
        """Whether forward's own graph is kept, rather than run again in backward."""
        if self.kind == "compile":
            return True
        if save_level not in ("inputs", "all"):
            remedy = "use inputs or all, or body = compile"
            raise InvalidInput("save_level", save_level, remedy)
        return save_level == "all"

    def of(self, layer_type: str, save_level: str, *, graph: bool) -> Body:
        """Return the body to call; without a graph no save level matters."""
        if self.kind != "compile":
            return self._plain[layer_type]
        if save_level not in BUDGETS:
            remedy = f"choose one of {', '.join(BUDGETS)}"
            raise InvalidInput("save_level", save_level, remedy)
        key = (layer_type, save_level if graph else "no graph")
        if key not in self._compiled:
            level = save_level if graph else "inputs"
            self._compiled[key] = compiled_body(
                self._plain[layer_type], layer_type, level, self._attention
            )
        return self._compiled[key]
