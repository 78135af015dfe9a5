"""From a folder of weights to an ``eval.json``: what ``lazytrain evaluate`` does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytrain.config import PipelineConfig, load_yaml
from lazytrain.data.prompts import load_tokenizer, with_template
from lazytrain.errors import InvalidInput
from lazytrain.evaluate.evaluation import (
    Subject,
    TestSet,
    answer_budget,
    evaluation_record,
    file_test_set,
    predict,
    record_without_model,
    split_test_set,
)
from lazytrain.evaluate.initial import (
    Stream,
    check_is_model,
    device_for,
    initial_model,
    load_model,
)
from lazytrain.evaluated import EvalRecord, Prediction
from lazytrain.provenance import collect
from lazytrain.records import RunRecord, make_folder, read, sha256_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What to evaluate; the fields are the command's options."""

    weights: Path
    split: Path | None = None
    rows: Path | None = None
    data: str | None = None
    record: Path | None = None
    config: Path | None = None
    limit: int | None = None
    batch: int = 128
    max_new_tokens: int = 0
    before: bool = True
    initial_weights: Path | None = None
    stream: Stream = "auto"
    out: Path | None = None
    template: str | None = None


def run_evaluation(request: Request) -> EvalRecord:
    """Answer the test rows with the trained and with the initial weights.

    Raises:
        InvalidInput: If weights, split, rows or record cannot be used.
    """
    _check(request)
    run, record_path = _record(request)
    subject = Subject.of(run, request.weights)
    test = _test_set(request, subject)
    if run is not None and run.status != "ok":
        log.warning("nothing to evaluate: %s (%s)", run.status, run.reason)
        provenance = collect(subject.accelerator, _made_from(request, record_path))
        return record_without_model(run, test.sha256, provenance)
    device = device_for(subject.accelerator)
    model = load_model(request.weights, device, request.stream)
    tokenizer = load_tokenizer(str(request.weights), model.config.vocab_size)
    with_template(tokenizer, request.template)
    budget = request.max_new_tokens or answer_budget(test, tokenizer)

    def answers(title: str, which: Any) -> list[Prediction]:
        start = time.monotonic()
        found = predict(which, tokenizer, test.rows, budget, request.batch)
        seconds = time.monotonic() - start
        log.info("%s: %d rows in %.1f s", title, len(found), seconds)
        return found

    after = answers("after training", model)
    before: list[Prediction] = []
    if request.before:
        start_from = _initial(request, run, record_path)
        if start_from is not None:
            before = answers("before training", start_from(model, device))
    provenance = collect(subject.accelerator, _made_from(request, record_path))
    return evaluation_record(test, after, before, subject, budget, provenance)


def _check(request: Request) -> None:
    """Refuse what would fail only once answers are there, and then cost them.

    Raises:
        InvalidInput: If the result cannot be written, or the options contradict.
    """
    out = request.out
    if out is not None:
        if out.is_dir():
            raise InvalidInput("out", str(out), "is a folder; name a file in it")
        make_folder(out.parent, "out")
    if request.data is not None and request.split is not None:
        given = (request.data, str(request.split))
        raise InvalidInput("data, split", given, "give one of the two")
    if request.before and request.initial_weights is not None:
        check_is_model(request.initial_weights)


def _record(request: Request) -> tuple[RunRecord | None, Path | None]:
    """Return the run's record and its place, if there is one."""
    path = request.record or request.weights.parent / "record.json"
    if request.record is None and not path.is_file():
        return None, None
    return read(RunRecord, path), path


def _test_set(request: Request, subject: Subject) -> TestSet:
    limit, seed = _limit(request, subject)
    if request.data is not None:
        return file_test_set(request.data, limit, seed)
    if request.split is None:
        raise InvalidInput("split", None, "give --split, or --data with any file")
    rows = request.rows or request.split.parent / "rows.jsonl"
    return split_test_set(request.split, rows, limit, seed)


def _limit(request: Request, subject: Subject) -> tuple[int, int]:
    """Return how many rows are answered (0: all) and the seed of the sample."""
    if request.config is None:
        return request.limit or 0, 0
    config = load_yaml(PipelineConfig, request.config)
    if request.limit is not None:
        return request.limit, config.seed
    settings = config.accelerators.get(subject.accelerator)
    return (settings.quality.test_rows if settings else 0), config.seed


def _initial(
    request: Request, run: RunRecord | None, record_path: Path | None
) -> Callable[[Any, Any], Any] | None:
    """Return how to make the model as it was before training, if that is known."""
    folder = request.initial_weights
    if folder is None and record_path is not None:
        saved = record_path.parent / "initial"
        folder = saved if saved.is_dir() else None
    if folder is not None:
        return lambda trained, device: load_model(folder, device, request.stream)
    if run is None or "weights" not in run.seeds:
        return None
    seed = run.seeds["weights"]
    pretrained = _pretrained(request)
    if pretrained is not None:
        begun = Path(pretrained)
        if begun.exists():
            return lambda trained, device: load_model(begun, device, request.stream)
        log.warning("give --initial-weights to evaluate the pretrained weights")
        return None
    return lambda trained, device: initial_model(trained, seed, device)


def _pretrained(request: Request) -> str | None:
    """Return the weights that the pipeline's runs begin with, if they are not drawn."""
    if request.config is None:
        return None
    weights = load_yaml(PipelineConfig, request.config).weights
    return None if weights == "random" else weights


def _weights_file(weights: Path) -> Path:
    return weights if weights.is_file() else weights / "model.safetensors"


def _made_from(request: Request, record_path: Path | None) -> dict[str, str]:
    """Return the sha256 of the files that the evaluation read."""
    files = {
        "split": request.split,
        "record": record_path,
        "weights": _weights_file(request.weights),
        "data": Path(request.data) if request.data else None,
    }
    return {
        role: sha256_file(path)
        for role, path in files.items()
        if path and path.is_file()
    }
