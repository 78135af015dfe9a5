"""The largest batch of a row is searched by real probes; what they found is kept."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lazytrain.commands.run import app
from lazytrain.errors import InvalidInput
from lazytrain.records import RunRecord, read
from lazytrain.searched import BatchSearch
from lazytrain.units import MIB

CONFIG = """
accelerator: cpu
runs: {sheet}
accelerators:
  cpu:
    executor: {{body: eager, dtype: float32, micro_batch_tokens: 512}}
    budgets: {{gpu_cap: 24MiB, cpu_activations: 4MiB, nvme_activations: 4MiB}}
    throughput: {{num_steps: 2, warmup_steps: 1, learning_rate: 1.0e-3}}
    quality: {{num_steps: 2, warmup_steps: 0, learning_rate: 1.0e-3}}
"""
SHEET = (
    "accelerator\tscale\tsystem\tmodel\tstands_for\tbatch\tseq_len\ttable3\ttable4\ttable5\n"
    "cpu\t3B\tlazytrain\t3B-mini\tQwen2.5-3B\t2\t256\ttrue\tfalse\tfalse\n"
    "cpu\t3B\tresident\t3B-mini\tQwen2.5-3B\t2\t256\ttrue\tfalse\tfalse\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, a split and both profiles of this machine."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "runs.tsv").write_text(SHEET)
    text = CONFIG.format(sheet=folder / "runs.tsv")
    (folder / "config.yaml").write_text(text)
    config = ("--config", folder / "config.yaml")
    call("data", "split", *config, "--out", folder / "s.json", "--rows", folder / "r")
    call("profile", "hardware", *config, "--out", folder / "hardware.json")
    scale = ("--scale", "3B")
    call("profile", "layers", *config, *scale, "--out", folder / "layers.json")
    return folder


def call(*words: object) -> None:
    """Run the command, and show what it said if it failed."""
    command = [sys.executable, "-m", "lazytrain", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_largest_batch_is_probed_measured_and_kept(folder: Path) -> None:
    """Under 24 MiB of device memory two sequences fit and four thousand do not."""
    out = folder / "run"
    call(
        *("run", "--config", folder / "config.yaml", "--scale", "3B"),
        *("--system", "lazytrain", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", out, "--search-batch", "2:4000"),
        *("--hardware", folder / "hardware.json", "--layers", folder / "layers.json"),
    )
    search = read(BatchSearch, out / "search.json")
    assert not search.probes[4000]
    assert search.probes[2]
    assert len(search.probes) == 4
    assert search.infeasible is not None
    assert 2 <= search.feasible < search.infeasible <= 4000
    assert search.probes[search.feasible]
    record = read(RunRecord, out / "record.json")
    assert record.status == "ok"
    assert record.batch == search.feasible
    assert record.gpu_peak_bytes is not None
    assert record.gpu_peak_bytes <= 24 * MIB
    # Another run here without a search leaves the old one as what it is.
    call(
        *("run", "--config", folder / "config.yaml", "--scale", "3B"),
        *("--system", "lazytrain", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", out, "--plan", out / "plan-2.json"),
    )
    assert not (out / "search.json").exists()
    assert (out / "search.json.previous").exists()


def test_auto_begins_at_the_estimate(folder: Path) -> None:
    """Ours is planned to the byte: the estimate's batch is the first to be probed."""
    out = folder / "auto"
    call(
        *("run", "--config", folder / "config.yaml", "--scale", "3B"),
        *("--system", "lazytrain", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", out, "--search-batch", "auto"),
        *("--hardware", folder / "hardware.json", "--layers", folder / "layers.json"),
    )
    search = read(BatchSearch, out / "search.json")
    assert search.estimated == search.high
    assert search.low == search.high // 2
    assert 1 <= len(search.probes) <= 4
    assert search.high in search.probes
    record = read(RunRecord, out / "record.json")
    assert (record.status, record.batch) == ("ok", search.feasible)
    assert search.feasible >= search.low


def test_auto_needs_what_it_estimates_from(folder: Path) -> None:
    """A rival runs without a plan, but its estimate comes from profiles too."""
    words = [
        *("run", "--scale", "3B", "--config", folder / "config.yaml"),
        *("--system", "resident", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", folder / "none"),
        "--search-batch=auto",
    ]
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    assert isinstance(error, InvalidInput)
    assert "--hardware and --layers" in str(error)
    assert not (folder / "none").exists()


def test_a_probe_ends_after_its_time(folder: Path) -> None:
    """No worker is ready within a second: nothing fits, and the search says why."""
    out = folder / "short"
    call(
        *("run", "--config", folder / "config.yaml", "--scale", "3B"),
        *("--system", "resident", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", out, "--search-batch", "1:2"),
        *("--probe-limit-s", "1"),
    )
    search = read(BatchSearch, out / "search.json")
    assert search.probes == {2: False, 1: False}
    assert search.too_long == (2, 1)
    assert search.feasible == 0
    assert read(RunRecord, out / "record.json").batch == 1


@pytest.mark.parametrize(
    "bounds", ["4", "4:", ":4", "a:b", "-1:4", "²:4", "0:4", "8:4"]
)
def test_bounds_that_are_none_are_refused(folder: Path, bounds: str) -> None:
    """With the value and what to write instead, before anything runs."""
    words = [
        *("run", "--scale", "3B", "--config", folder / "config.yaml"),
        *("--system", "resident", "--split", folder / "s.json"),
        *("--rows", folder / "r", "--out", folder / "none"),
        f"--search-batch={bounds}",
    ]
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    assert isinstance(error, InvalidInput)
    assert bounds in str(error)
    assert not (folder / "none").exists()
