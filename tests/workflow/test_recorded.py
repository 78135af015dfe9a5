"""Tables from recorded runs: the real commands, several sheet ids, no GPU."""

import csv
import os
import sys
from pathlib import Path

import pytest
from measured import hardware_profile, layer_profile

from lazytrain.provenance import collect
from lazytrain.records import RunRecord, write

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.workflow


def record(accelerator, system, **values):
    count = 3_085_938_688
    padded = (values.get("tflops", 444.0) or 0.0) * 1e12 / (6 * count)
    given = {
        "batch": 192,
        "status": "ok",
        "num_parameters": count,
        "tokens_per_s": padded / 2,
        "padded_tokens_per_s": padded,
        "tflops": 444.0,
        "step_s": 192 * 1024 / padded if padded else None,
        "gpu_peak_bytes": 70 * 10**9,
        "host_peak_bytes": 45 * 10**9,
        "master": "fp32-split",
        "optimizer_state": "hybrid-0.02",
    }
    return RunRecord(
        system=system,
        scale="3B",
        model="Qwen2.5-3B",
        stands_for="Qwen2.5-3B",
        accelerator=accelerator,
        seq_len=1024,
        purpose="throughput",
        device="NVIDIA H200",
        provenance=collect("cpu"),
        **given | values,
    )


@pytest.fixture
def recorded(workspace):
    """Two sheet ids of one machine, one row out of memory, most not run."""
    folder = workspace.folder / "results" / "recorded" / "test"
    runs = [
        record("h200", "lazytrain"),
        record("h200", "megatrain", tflops=240.0),
        record("h200-cap70", "lazytrain", tflops=430.0),
        record(
            *("h200-cap70", "resident"),
            status="oom",
            reason="out of gpu memory",
            tflops=None,
            batch=128,
        ),
    ]
    for run in runs:
        place = folder / "runs" / run.accelerator / run.scale / run.system
        write(run, place / "record.json")
    write(hardware_profile(), folder / "profile" / "h200" / "hardware.json")
    write(layer_profile(), folder / "profile" / "h200" / "3B" / "layers.json")
    # The real command this time, not the stand-in.
    tools = Path(sys.executable).parent
    workspace.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    return workspace


@pytest.mark.parametrize("text", ['{"purpose": "thr', "{}", "[]"])
def test_a_file_that_is_no_record_is_named(recorded, text):
    place = recorded.folder / "results" / "recorded" / "test" / "broken"
    place.mkdir()
    (place / "record.json").write_text(text)
    done = recorded.snakemake(
        "-n", "results/table3.csv", "--config", "records=recorded/test"
    )
    assert done.returncode != 0
    assert "recorded/test/broken/record.json is no record" in done.stdout


def test_tables_come_from_records_without_a_gpu(recorded):
    names = [f"results/{name}.csv" for name in ("table3", "table5", "compare")]
    names += ["results/table2.csv", "results/figures/throughput.svg"]
    done = recorded.snakemake(
        "--cores", "2", *names, "--config", "records=recorded/test"
    )
    assert done.returncode == 0, done.stdout
    with (recorded.folder / "results" / "table3.csv").open() as file:
        rows = {
            (r["accelerator"], r["scale"], r["system"]): r for r in csv.DictReader(file)
        }
    assert {key[0] for key in rows} == {"h200", "h200-cap70"}
    assert rows["h200", "3B", "lazytrain"]["tflops"] == "444.00"
    assert rows["h200", "3B", "lazytrain"]["device"] == "NVIDIA H200"
    assert rows["h200-cap70", "3B", "resident"]["tflops"] == "OOM@128"
    unrun = rows["h200-cap70", "7B", "lazytrain"]
    assert unrun["tflops"] == "n/a"
    assert float(unrun["predicted_tflops"]) > 0
    with (recorded.folder / "results" / "table5.csv").open() as file:
        ablation = [r for r in csv.DictReader(file) if r["tflops"] != "n/a"]
    assert {row["system"] for row in ablation} == {"lazytrain", "megatrain"}
