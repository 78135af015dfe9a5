"""Exact match while a run trains: when, over which rows, and at no cost to the run."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from test_checkpoint_kill import STEPS, answers, make_request, numbers

from lazytrain.config import ExactMatchSettings
from lazytrain.data.batches import Position
from lazytrain.data.prompts import prompt_text
from lazytrain.data.rows import read_rows
from lazytrain.data.split import side_rows
from lazytrain.evaluate.evaluation import sample
from lazytrain.evaluate.generate import generate
from lazytrain.evaluate.initial import InitialWeights, initial_model, load_model
from lazytrain.evaluate.live import live_model
from lazytrain.evaluated import EvalRecord, EvaluationPoint, Prediction
from lazytrain.models.scales import model_config
from lazytrain.records import SplitManifest, read, read_lines, write_lines
from lazytrain.train import checkpoint
from lazytrain.train.evaluations import Evaluator, epochs_taken
from lazytrain.train.run import run_row

CPU = torch.device("cpu")


def with_answers(request, **wanted):
    """Return a request with other settings for its answers."""
    settings = request.config.accelerators["cpu"]
    changed = ExactMatchSettings(max_new_tokens=3, batch=4, **wanted)
    quality = settings.quality.model_copy(update={"exact_match": changed})
    accelerators = {"cpu": settings.model_copy(update={"quality": quality})}
    config = request.config.model_copy(update={"accelerators": accelerators})
    return request.model_copy(update={"config": config})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that answers the whole test side before and after, and samples between."""
    folder = tmp_path_factory.mktemp("answers")
    request = make_request(folder, keep_checkpoints=9)
    request = with_answers(
        request, every_epochs=0.02, rows=3, before="full", after="full"
    )
    run_row(request)
    return request


def test_every_evaluation_leaves_a_line_and_all_its_answers(finished):
    out = finished.out
    points = read_lines(EvaluationPoint, out / "evaluations.jsonl")
    rows = side_rows(read_rows(finished.rows), read(SplitManifest, finished.split).test)
    sampled = [row.row_id for row in sample(rows, 3, 0)]
    assert [(p.step, p.rows) for p in points] == [
        (0, "full"),
        *((step, "sample") for step in range(1, STEPS)),
        (STEPS, "full"),
    ]
    for point in points:
        found = read_lines(Prediction, out / point.predictions)
        expected = sampled if point.rows == "sample" else [row.row_id for row in rows]
        assert [prediction.row_id for prediction in found] == expected
        assert point.num_rows == len(expected)
        assert point.exact_match == sum(p.correct for p in found) / len(found)
        assert sum(total for _, total in point.by_type.values()) == len(found)


def test_the_answers_are_those_of_the_saved_weights(finished):
    """The truth is the folder that was saved, loaded as anyone would."""
    rows = side_rows(read_rows(finished.rows), read(SplitManifest, finished.split).test)
    from lazytrain.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer("random", 384)
    prompts = [prompt_text(row, tokenizer) for row in rows]
    trained = load_model(finished.out / "weights", CPU)
    for step, model in ((STEPS, trained), (0, initial_model(trained, 0, CPU))):
        file = finished.out / "predictions" / f"step-{step:06d}-full.jsonl"
        texts = [prediction.text for prediction in read_lines(Prediction, file)]
        assert texts == generate(model, tokenizer, prompts, 3, 4)


def test_the_whole_test_side_becomes_a_record(finished):
    record = read(EvalRecord, finished.out / "eval.json")
    assert record.num_rows == record.num_test_rows == len(record.predictions)
    assert len(record.before_predictions) == record.num_rows
    assert record.before is not None
    assert (record.system, record.accelerator) == ("lazytrain", "cpu")


def test_answering_changes_nothing_in_the_training(finished, tmp_path):
    plain = make_request(tmp_path)
    run_row(with_answers(plain))
    assert numbers(plain.out) == numbers(finished.out)
    names = [
        path / "weights" / "model.safetensors" for path in (plain.out, finished.out)
    ]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert not (plain.out / "evaluations.jsonl").exists()


def test_a_resumed_run_has_the_lines_of_the_undisturbed_one(finished, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished.out, out)
    for folder in checkpoint.folders(out / "checkpoints"):
        if checkpoint.step_of(folder) > 2:
            shutil.rmtree(folder)
    # What a killed run had written beyond its checkpoint counts for nothing.
    points = read_lines(EvaluationPoint, out / "evaluations.jsonl")
    late = points[3].model_copy(update={"exact_match": 1.0})
    write_lines([*points[:3], late], out / "evaluations.jsonl")
    run_row(finished.model_copy(update={"out": out}))
    assert answers(out) == answers(finished.out)
    # Once more, from its end: the last line is written anew, not twice.
    run_row(finished.model_copy(update={"out": out}))
    assert answers(out) == answers(finished.out)


def test_rows_without_a_final_answer_are_not_asked(tmp_path, caplog):
    request = make_request(tmp_path)
    rows = [
        row.model_copy(update={"response": "So."}) for row in read_rows(request.rows)
    ]
    evaluator = Evaluator(
        request=request,
        engine=None,
        source=None,
        data=type("Data", (), {"test_rows": rows, "train_rows": rows})(),
    )
    assert "no exact match" in caplog.text
    assert not evaluator.is_due(1)
    evaluator.finish()
    assert not (request.out / "evaluations.jsonl").exists()


@pytest.mark.parametrize(
    ("every", "batch", "due"),
    [
        (0.1, 10, list(range(1, 20))),
        (0.1, 7, [2, 3, 5, 6, 8, 9, 10, 12, 13, 15, 16, 18, 19]),
        (0.25, 10, [3, 5, 8, 10, 13, 15, 18]),
        (0.5, 64, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
    ],
)
def test_marks_fall_where_the_rows_taken_pass_them(tmp_path, every, batch, due):
    request = with_answers(make_request(tmp_path), every_epochs=every, after="full")
    settings = request.config.accelerators["cpu"]
    quality = settings.quality.model_copy(update={"num_steps": 20})
    accelerators = {"cpu": settings.model_copy(update={"quality": quality})}
    config = request.config.model_copy(update={"accelerators": accelerators})
    rows = read_rows(request.rows)[:100]
    stream = type("Stream", (), {"position": Position()})()
    side = type("Side", (), {"sha256": ""})()
    data = type(
        "Data",
        (),
        {
            "test_rows": rows,
            "train_rows": rows,
            "train": stream,
            "manifest": type("Manifest", (), {"test": side})(),
        },
    )()
    evaluator = Evaluator(
        request.model_copy(update={"config": config}), None, None, data
    )
    found = []
    for step in range(1, 21):
        taken = step * batch
        stream.position = Position(taken // 100, taken % 100)
        if evaluator.is_due(step):
            assert evaluator.is_due(step)  # asking twice is no second mark
            found.append(step)
    # The last step is left to the evaluation after training.
    assert found == due


def test_waiting_documents_are_not_taken():
    assert epochs_taken(Position(1, 50, (3, 4)), 100) == 1.48
    assert epochs_taken(Position(), 0) == 0.0


def test_without_room_on_the_device_layers_stream_with_the_same_texts():
    from lazytrain.data.tokenizer import load_tokenizer

    config = model_config("3B-mini")
    weights = dict(InitialWeights(config, 3))
    tokenizer = load_tokenizer("random", 384)
    whole = live_model(config, weights, CPU, torch.float32)
    streamed = live_model(config, weights, CPU, torch.float32, room_bytes=1000)
    assert hasattr(streamed, "stream")
    assert not hasattr(whole, "stream")
    texts = [generate(m, tokenizer, ["a", "bc"], 8, 2) for m in (whole, streamed)]
    assert texts[0] == texts[1]


def test_lines_are_split_at_line_feeds_only(tmp_path):
    """A model may write any separator that Unicode knows."""
    text = "a\u2028b\x85c\x0bd\n\r"
    prediction = Prediction(
        row_id=0, type="t", expected="1", answer=None, text=text, correct=False
    )
    write_lines([prediction, prediction], tmp_path / "lines.jsonl")
    assert read_lines(Prediction, tmp_path / "lines.jsonl") == [prediction] * 2
    assert json.loads((tmp_path / "lines.jsonl").read_text().split("\n")[0])
