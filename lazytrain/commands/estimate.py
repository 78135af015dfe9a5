"""Commands that answer before anything is bought or run: estimate and fit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lazytrain.errors import InvalidInput
from lazytrain.units import format_bytes, parse_bytes, parse_rate

if TYPE_CHECKING:
    from lazytrain.schedule.assumed import Machine
    from lazytrain.schedule.estimate import Estimate
    from lazytrain.schedule.shapes import ModelShape

app = typer.Typer(no_args_is_help=True, help=__doc__)

# Above what any machine does in TFLOP/s or 1e9 parameters/s.
MOST_RATE = 1e9

Model = Annotated[
    str, typer.Argument(help="config.json, a folder with one, or a model of the tables")
]
GpuMemory = Annotated[str, typer.Option(help="usable GPU memory, such as 80GiB")]
CpuMemory = Annotated[str, typer.Option(help="usable host memory")]
Nvme = Annotated[str, typer.Option(help="disk space for activations and state")]
H2d = Annotated[str, typer.Option(help="host to device rate, such as 12GB/s")]
D2h = Annotated[str, typer.Option(help="device to host rate; default: as --h2d")]
NvmeRead = Annotated[str, typer.Option(help="disk read rate")]
NvmeWrite = Annotated[str, typer.Option(help="disk write rate")]
Tflops = Annotated[float, typer.Option(help="TFLOP/s that a layer sustains")]
Updates = Annotated[float, typer.Option(help="CPU optimizer, 1e9 parameters/s")]
SeqLen = Annotated[int, typer.Option(help="tokens per sequence", min=2)]
Batch = Annotated[int, typer.Option(help="sequences per step", min=1, max=10**6)]
MicroTokens = Annotated[int, typer.Option(help="tokens per pass of a layer", min=1)]
Optimizer = Annotated[
    Literal["hybrid_adamw_8bit", "cpu_adamw_8bit", "adamw"],
    typer.Option(help="state format"),
]
StateHome = Annotated[
    Literal["cpu", "nvme", "auto"], typer.Option(help="where optimizer state lives")
]

StepOrder = Annotated[
    Literal["layer-major", "batch-major", "auto"],
    typer.Option(
        "--order",
        help="each layer over the whole batch, each wave through the whole model, or"
        " the faster of both",
    ),
]


def read_shape(model: str) -> ModelShape:
    """Return a model's shape from a config.json, a folder, or the table of models.

    Raises:
        InvalidInput: If it is none of these.
    """
    from lazytrain.schedule.shapes import model_shape

    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            config: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInput("model", model, f"is no JSON: {error}") from error
        if not isinstance(config, dict):
            raise InvalidInput("model", model, "is no decoder configuration")
        return model_shape(config, path.parent.name or path.stem)
    if path.suffix == ".json" or "/" in model:
        raise InvalidInput("model", model, "the file does not exist")
    from lazytrain.models.scales import model_config

    return model_shape(model_config(model).to_dict(), model)


def read_machine(
    gpu_memory: str,
    cpu_memory: str,
    nvme_memory: str,
    rates: dict[str, str],
    tflops: float,
    updates: float,
) -> Machine:
    """Return the machine of the options; each is refused by its own name.

    Raises:
        InvalidInput: If a size or a rate has no unit or makes no sense.
    """
    from lazytrain.schedule.assumed import Machine

    for field, value in (("tflops", tflops), ("update-rate", updates)):
        if not 0 < value < MOST_RATE:
            remedy = f"must be above zero and below {MOST_RATE:g}"
            raise InvalidInput(field, value, remedy)
    return Machine(
        gpu_memory_bytes=parse_bytes(gpu_memory, "gpu-memory"),
        cpu_memory_bytes=parse_bytes(cpu_memory, "cpu-memory"),
        nvme_bytes=parse_bytes(nvme_memory, "nvme-memory"),
        h2d=parse_rate(rates["h2d"], "h2d"),
        d2h=parse_rate(rates["d2h"] or rates["h2d"], "d2h"),
        nvme_read=parse_rate(rates["nvme_read"], "nvme-read"),
        nvme_write=parse_rate(rates["nvme_write"], "nvme-write"),
        flops=tflops * 1e12,
        optimizer_parameters_per_s=updates * 1e9,
    )


@app.command()
def estimate(
    model: Model,
    gpu_memory: GpuMemory = "80GiB",
    cpu_memory: CpuMemory = "512GiB",
    nvme_memory: Nvme = "0B",
    h2d: H2d = "12GB/s",
    d2h: D2h = "",
    nvme_read: NvmeRead = "2.83GB/s",
    nvme_write: NvmeWrite = "3.35GB/s",
    tflops: Tflops = 400.0,
    update_rate: Updates = 2.0,
    batch: Batch = 32,
    seq_len: SeqLen = 1024,
    micro_batch_tokens: MicroTokens = 16384,
    optimizer: Optimizer = "hybrid_adamw_8bit",
    state_home: StateHome = "cpu",
    order: StepOrder = "layer-major",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what a machine could do with a model: memory, step time, largest batch."""
    from lazytrain.schedule.assumed import Job
    from lazytrain.schedule.estimate import estimate

    rates = {"h2d": h2d, "d2h": d2h, "nvme_read": nvme_read, "nvme_write": nvme_write}
    machine = read_machine(
        gpu_memory, cpu_memory, nvme_memory, rates, tflops, update_rate
    )
    job = Job(batch, seq_len, micro_batch_tokens, optimizer, state_home, order)
    answer = estimate(read_shape(model), machine, job)
    text = answer.model_dump_json(indent=1) if as_json else "\n".join(_lines(answer))
    typer.echo(text)


@app.command()
def fit(
    model: Model,
    search: Annotated[
        Literal["batch", "seq_len"], typer.Option(help="what to make large")
    ] = "batch",
    gpu_memory: GpuMemory = "80GiB",
    cpu_memory: CpuMemory = "512GiB",
    nvme_memory: Nvme = "0B",
    batch: Batch = 1,
    seq_len: SeqLen = 1024,
    micro_batch_tokens: MicroTokens = 16384,
    optimizer: Optimizer = "hybrid_adamw_8bit",
    state_home: StateHome = "cpu",
    order: StepOrder = "layer-major",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Search the largest batch or sequence that the given memory holds."""
    from lazytrain.schedule.assumed import Job
    from lazytrain.schedule.fit import fit

    # Rates do not decide what fits.
    rates = {"h2d": "1GB/s", "d2h": "", "nvme_read": "1GB/s", "nvme_write": "1GB/s"}
    machine = read_machine(gpu_memory, cpu_memory, nvme_memory, rates, 1.0, 1.0)
    job = Job(batch, seq_len, micro_batch_tokens, optimizer, state_home, order)
    largest, limit = fit(read_shape(model), machine, job, search)
    if as_json:
        typer.echo(json.dumps({search: largest, "limit": limit}))
        return
    typer.echo(f"largest {search}: {largest if largest is not None else 'none'}")
    typer.echo(f"limit: {limit}")


def _lines(answer: Estimate) -> Iterable[str]:
    """Yield an estimate as text for people."""
    yield f"{answer.model}: {answer.num_parameters / 1e9:.3f} B parameters"
    yield f"batch {answer.batch} x {answer.seq_len} tokens"
    for tier, items in (("GPU", answer.gpu_bytes), ("CPU", answer.cpu_bytes)):
        yield f"{tier} memory beside boundaries:"
        for name, size in items.items():
            yield f"  {name.replace('_', ' '):22} {format_bytes(size):>12}"
    yield f"largest batch: {answer.largest_batch or 'none'}"
    yield f"limit: {answer.limit}"
    if not answer.fits or answer.step_s is None:
        return
    counts = ", ".join(f"{home} {count}" for home, count in answer.counts.items())
    yield f"order: {answer.order}"
    yield f"boundaries: {counts} ({answer.solve_status})"
    for tier, size in answer.peak_bytes.items():
        yield f"{tier} peak: {format_bytes(size)}"
    yield f"predicted step: {answer.step_s:.3f} s"
    yield f"predicted rate: {answer.tokens_per_s:,.0f} tokens/s"
    exposed = sum(answer.exposed_s.values())
    yield f"{answer.tflops:.1f} TFLOPS (6N), {exposed:.3f} s exposed"
