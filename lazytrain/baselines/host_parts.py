"""The host side of a layer-streaming rival: masters, pinned copies and gradients.

Per part there is a master in the run's dtype that Adam steps, a pinned flat copy that
the device reads, and a pinned flat gradient that it writes: with fp32 moments that is
the 14 bytes per parameter of the system this stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lazytrain.baselines.initial import part_tensors
from lazytrain.errors import OutOfMemory
from lazytrain.models.decoder import Decoder, PartShape
from lazytrain.optim.pages import zeros

_ALIGN = 128  # elements: every tensor starts on 256 bytes in bf16


def offsets_of(part: PartShape) -> tuple[dict[str, int], int]:
    """Return each tensor's offset in the part's flat buffer, and the buffer's size."""
    offsets, end = {}, 0
    for name, shape in part.tensors.items():
        offsets[name] = end
        end += -(-torch.Size(shape).numel() // _ALIGN) * _ALIGN
    return offsets, end


def views_of(part: PartShape, flat: Tensor) -> dict[str, Tensor]:
    """Return the part's tensors as views of a flat buffer."""
    offsets, _ = offsets_of(part)
    return {
        name: flat[offsets[name] :][: torch.Size(shape).numel()].view(shape)
        for name, shape in part.tensors.items()
    }


def _cuda_runtime() -> Any:
    """Return torch's binding of the CUDA runtime, which ships no types."""
    cuda: Any = torch.cuda
    return cuda.cudart()


def pinned(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a zeroed host buffer, page-locked where there is a GPU.

    The buffer is registered as it is: torch's own pinned pool would round it up to a
    power of two. Its pages are taken first, by all cores.

    Raises:
        OutOfMemory: If the driver refuses to lock the pages.
    """
    buffer = zeros(numel, dtype, torch.device("cpu"))
    if device.type == "cuda" and numel > 0:
        buffer.fill_(0)
        runtime = _cuda_runtime()
        status = runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        if int(status) != 0:
            raise OutOfMemory("pinned", buffer.nbytes, "the driver refused to pin it")
    return buffer


def release(buffer: Tensor, device: torch.device) -> None:
    """Unlock a buffer's pages."""
    if device.type == "cuda" and buffer.numel() > 0:
        _cuda_runtime().cudaHostUnregister(buffer.data_ptr())


@dataclass
class HostPart:
    """One part in host memory."""

    shape: PartShape
    master: Tensor
    weights: Tensor
    gradient: Tensor
    parameters: dict[str, nn.Parameter]

    def publish(self) -> None:
        """Copy the master into the buffer that the device reads."""
        self.weights.copy_(self.master)

    def release(self, device: torch.device) -> None:
        """Unlock this part's buffers."""
        release(self.weights, device)
        release(self.gradient, device)


def host_part(
    decoder: Decoder,
    shape: PartShape,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    state_dict: Mapping[str, Tensor] | None,
) -> HostPart:
    """Allocate and fill one part; its parameters' gradients are views too."""
    _, numel = offsets_of(shape)
    master = zeros(numel, dtype, torch.device("cpu"))
    weights, gradient = (pinned(numel, dtype, device) for _ in range(2))
    values = part_tensors(decoder, shape, seed, device, state_dict)
    for name, view in views_of(shape, weights).items():
        # Rounded where it lies, and received in locked memory.
        view.copy_(values[name].to(dtype))
    master.copy_(weights)
    gradients = views_of(shape, gradient)
    parameters = {}
    for name, view in views_of(shape, master).items():
        parameters[name] = nn.Parameter(view)
        parameters[name].grad = gradients[name]
    return HostPart(shape, master, weights, gradient, parameters)
