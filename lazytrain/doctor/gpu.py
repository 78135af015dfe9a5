"""The GPU, its driver and its link to the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lazytrain.doctor.report import Check
from lazytrain.units import GIB, format_bytes, format_rate

_NO_GPU = "without an NVIDIA GPU only the stand-in rows (accelerator cpu) can run"
_SLOW_LINK_BYTES_PER_S = 20e9  # below this, streaming a layer outlasts its compute


@dataclass(frozen=True)
class LinkWidth:
    """PCIe generation and lanes, now and at most; all 0 where NVML does not say."""

    generation: int
    width: int
    max_generation: int
    max_width: int

    @property
    def is_narrow(self) -> bool:
        """Whether the slot has fewer lanes than the card. Idle links drop the rest."""
        return self.width < self.max_width


def checks() -> Iterator[Check]:
    """Yield the checks of the GPU and its link."""
    from lazytrain.provenance import first_gpu

    gpu = first_gpu()
    if gpu is None:
        yield Check(name="gpu", value="none", verdict="warn", remedy=_NO_GPU)
        return
    value = f"{gpu.name}, {format_bytes(gpu.memory_bytes)}"
    yield Check(name="gpu", value=value, verdict="ok")
    yield _driver()
    yield _width(_link_width())
    yield _rate()


def _driver() -> Check:
    """Compare the driver's CUDA with the one torch was built for."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    version = str(pynvml.nvmlSystemGetDriverVersion())
    cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
    pynvml.nvmlShutdown()
    value = f"{version} (CUDA up to {cuda // 1000}.{cuda % 1000 // 10})"
    if not torch.cuda.is_available():
        remedy = f"torch {torch.__version__} cannot use it: install a CUDA build"
        return Check(name="driver", value=value, verdict="fail", remedy=remedy)
    return Check(name="driver", value=value, verdict="ok")


def _link_width() -> LinkWidth:
    """Ask NVML for the link of the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return LinkWidth(
            int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        )
    except pynvml.NVMLError:
        return LinkWidth(0, 0, 0, 0)
    finally:
        pynvml.nvmlShutdown()


def _width(link: LinkWidth) -> Check:
    """Judge the link's width."""
    if link.max_width == 0:
        remedy = "trust the measured rate; a virtual machine hides the link"
        return Check(name="link", value="not told", verdict="warn", remedy=remedy)
    value = (
        f"PCIe gen {link.generation} x{link.width} "
        f"(card: gen {link.max_generation} x{link.max_width})"
    )
    if link.is_narrow:
        remedy = "move the card to a slot with all its lanes"
        return Check(name="link", value=value, verdict="warn", remedy=remedy)
    return Check(name="link", value=value, verdict="ok")


def _rate() -> Check:
    """Measure pinned copies both ways."""
    import torch

    from lazytrain.profile.bandwidth import measure_link

    if not torch.cuda.is_available():
        return Check(name="link rate", value="not measured", verdict="fail")
    rates = measure_link(torch.device("cuda", 0), GIB // 4)
    value = (
        f"to GPU {format_rate(rates.h2d)}, from GPU {format_rate(rates.d2h)}, "
        f"together {format_rate(rates.h2d_together)} each"
    )
    if min(rates.h2d, rates.d2h) < _SLOW_LINK_BYTES_PER_S:
        remedy = "see link; check that no other job uses it; keep more weights resident"
        return Check(name="link rate", value=value, verdict="warn", remedy=remedy)
    return Check(name="link rate", value=value, verdict="ok")
