"""Tables from recorded runs: the real commands, several sheet ids, no GPU."""

import csv
import json
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


def broken(workspace, **values):
    """Plant a record that was changed by hand beside the others."""
    place = workspace.folder / "results" / "recorded" / "test" / "broken"
    given = json.loads(record("h200", "lazytrain-8bit").model_dump_json())
    place.mkdir()
    (place / "record.json").write_text(json.dumps(given | values))


@pytest.mark.parametrize("text", ['{"purpose": "thr', "{}", "[]", ""])
def test_a_file_that_is_no_record_is_named(recorded, text):
    place = recorded.folder / "results" / "recorded" / "test" / "broken"
    place.mkdir()
    (place / "record.json").write_text(text)
    done = recorded.snakemake(
        "-n", "results/table3.csv", "--config", "records=recorded/test"
    )
    assert done.returncode != 0
    assert "a recorded run cannot be used" in done.stdout
    assert "results/recorded/test/broken/record.json" in done.stdout


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"complete": False}, "complete = False"),
        ({"tflops": 999.0}, "tflops = 999.0: is not 6 * num_parameters"),
        ({"system": "lazytrian"}, "system = 'lazytrian': unknown system"),
        ({"purpose": "qualty"}, "purpose = 'qualty'"),
        ({"system": "lazytrain"}, "is recorded twice"),
    ],
)
def test_a_changed_record_stops_before_the_first_job(recorded, values, said):
    broken(recorded, **values)
    done = recorded.snakemake(
        *("--cores", "1", "results/table3.csv"),
        *("--config", "records=recorded/test"),
    )
    assert done.returncode != 0
    assert said in done.stdout
    assert "broken/record.json" in done.stdout
    assert not (recorded.folder / "results" / "table3.csv").exists()


def test_a_record_without_a_row_is_announced(recorded):
    broken(recorded, scale="4B")
    done = recorded.snakemake(
        "-n", "results/table3.csv", "--config", "records=recorded/test"
    )
    assert done.returncode == 0, done.stdout
    (line,) = (x for x in done.stdout.splitlines() if "without a row" in x)
    assert "1 without a row in config/runs.tsv" in line
    assert "h200/4B/lazytrain-8bit" in line


def test_a_wrong_folder_names_the_recorded_ones(recorded):
    done = recorded.snakemake("-n", "--config", "records=results/recorded/test")
    assert done.returncode != 0
    assert "records = 'results/recorded/test'" in done.stdout
    assert "or one of recorded/test" in done.stdout


def test_a_sheet_of_other_machines_is_refused(recorded):
    words = ("records=recorded/test", "runs=config/runs-smoke.tsv", "accelerator=auto")
    done = recorded.snakemake("-n", "results/table3.csv", "--config", *words)
    assert done.returncode != 0
    assert "no row of a recorded machine (h200)" in done.stdout


def test_one_sheet_id_of_the_recorded_ones_is_shown_alone(recorded):
    done = recorded.snakemake(
        *("-n", "-p", "results/table3.csv", "--config"),
        *("records=recorded/test", "accelerator=h200-cap70"),
    )
    assert "--accelerator h200-cap70 " in done.stdout


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
    # Every sheet id of the recorded machine, those without a record as well.
    assert {"h200", "h200-cap70", "h200-cap24"} <= {key[0] for key in rows}
    assert {key[0].split("-")[0] for key in rows} == {"h200"}
    assert rows["h200-cap24", "7B", "lazytrain"]["tflops"] == "n/a"
    place = "results/recorded/test/runs/h200/3B/lazytrain/record.json"
    assert rows["h200", "3B", "lazytrain"]["record"] == place
    assert rows["h200", "3B", "lazytrain"]["tflops"] == "444.00"
    assert rows["h200", "3B", "lazytrain"]["device"] == "NVIDIA H200"
    assert rows["h200-cap70", "3B", "resident"]["tflops"] == "OOM@128"
    unrun = rows["h200-cap70", "7B", "lazytrain"]
    assert unrun["tflops"] == "n/a"
    assert float(unrun["predicted_tflops"]) > 0
    with (recorded.folder / "results" / "table5.csv").open() as file:
        ablation = [r for r in csv.DictReader(file) if r["tflops"] != "n/a"]
    assert {row["system"] for row in ablation} == {"lazytrain", "megatrain"}
