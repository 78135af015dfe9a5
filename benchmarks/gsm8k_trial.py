"""One row of ``config/runs-trial.tsv``: SmolLM2-135M-Instruct trained on GSM8K.

For a machine without Snakemake; the files are those of the workflow. Prints one JSON
line; leaves record, steps, evaluations, every answer and ``eval.json`` below ``--out``,
in a folder named after the system.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from lazytrain.config import PipelineConfig, find_run, load_runs, load_yaml
from lazytrain.data.divide import divide
from lazytrain.data.metamath import load_rows
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings
from lazytrain.evaluated import EvalRecord, EvaluationPoint
from lazytrain.profile.accelerator import resolve_accelerator
from lazytrain.records import read, read_lines, write
from lazytrain.train.build import PLANNED
from lazytrain.train.lock import hold_accelerator
from lazytrain.train.planning import make_plan
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_row
from lazytrain.train.source import load_source

SCALE = "135M"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", required=True)
    parser.add_argument("--weights", required=True, help="GGUF file, folder or hub id")
    parser.add_argument("--data", required=True, type=Path, help="train and test.jsonl")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--config", type=Path, default=Path("config/trial.yaml"))
    parser.add_argument("--accelerator", default="auto", help="auto, or a sheet id")
    parser.add_argument("--threads", type=int, default=0, help="of the host's AdamW")
    parser.add_argument("--batch", type=int, default=0, help="0: the sheet's")
    parser.add_argument("--steps", type=int, default=0, help="0: the configuration's")
    parser.add_argument("--answers", type=int, default=-1, help="test rows; 0: all")
    parser.add_argument("--every-epochs", type=float, default=-1, help="of a sample")
    parser.add_argument("--max-new-tokens", type=int, default=0)
    parser.add_argument("--drop-weights", action="store_true", help="keep records only")
    return parser.parse_args()


def configured(given: argparse.Namespace, accelerator: str) -> PipelineConfig:
    """Return the trial's configuration with what the command line changes."""
    config = load_yaml(PipelineConfig, given.config)
    settings = config.accelerators[accelerator]
    changes: dict[str, Any] = {}
    if given.steps:
        changes["num_steps"] = given.steps
    if given.answers >= 0:
        changes["test_rows"] = given.answers
    answers: dict[str, Any] = {}
    if given.every_epochs >= 0:
        answers["every_epochs"] = given.every_epochs
    if given.max_new_tokens:
        answers["max_new_tokens"] = given.max_new_tokens
    changes["exact_match"] = settings.quality.exact_match.model_copy(update=answers)
    quality = settings.quality.model_copy(update=changes)
    changed = settings.model_copy(update={"quality": quality})
    threads = {"threads": given.threads} if given.threads else {}
    return config.model_copy(
        update={
            "weights": given.weights,
            "data": str(given.data / "train.jsonl"),
            "test_data": str(given.data / "test.jsonl"),
            "optimizer": config.optimizer.model_copy(update=threads),
            "accelerators": config.accelerators | {accelerator: changed},
        }
    )


def write_data(config: PipelineConfig, out: Path) -> tuple[Path, Path]:
    """Write rows and manifest; return their paths."""
    numbered, manifest = divide(
        load_rows(config.data),
        SplitSettings(seed=config.seed),
        source=Path(config.data).name,
        test=load_rows(config.test_data),
        test_source=Path(config.test_data).name,
    )
    rows, split = out / "rows.jsonl", out / "split.json"
    write_rows(numbered, rows)
    write(manifest, split)
    return rows, split


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Plan, train and evaluate; return what the trial found."""
    started = time.monotonic()
    accelerator = resolve_accelerator(given.accelerator)
    config = configured(given, accelerator)
    row = find_run(load_runs(Path(config.runs)), accelerator, SCALE, given.system)
    if given.batch:
        row = row.model_copy(update={"batch": given.batch})
    out = given.out / given.system
    rows, split = write_data(config, out)
    plan = None
    if row.system in PLANNED:
        plan = out / "plan.json"
        model_config = load_source(config.weights, row.model).config
        with hold_accelerator(accelerator):
            write(make_plan(row, config, model_config, out), plan)
    record = run_row(
        RunRequest(
            row=row,
            config=config,
            purpose="quality",
            split=split,
            rows=rows,
            out=out,
            plan=plan,
        )
    )
    found: dict[str, Any] = record.model_dump(
        include={"system", "status", "reason", "num_steps", "first_loss", "last_loss"}
    )
    found |= record.model_dump(include={"eval_loss", "step_s", "gpu_peak_bytes"})
    if (out / "eval.json").is_file():
        points = read_lines(EvaluationPoint, out / "evaluations.jsonl")
        evaluation = read(EvalRecord, out / "eval.json")
        found |= {
            "exact_match": evaluation.exact_match,
            "before": evaluation.before,
            "answers_s": sum(point.seconds for point in points),
        }
    if given.drop_weights:
        shutil.rmtree(out / "weights", ignore_errors=True)
    return found | {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.stdout.write(json.dumps(run(arguments())) + "\n")
