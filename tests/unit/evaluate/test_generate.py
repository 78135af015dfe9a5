"""Batched cached generation equals one prompt at a time without a cache."""

import json
from dataclasses import replace

import pytest
import torch
from smollm2 import gguf_or_skip
from transformers import AutoModelForCausalLM, GgufConfig

from lazytrain.config import (
    AcceleratorSettings,
    PipelineConfig,
    Purpose,
    SyntheticSettings,
)
from lazytrain.data.metamath import load_rows
from lazytrain.data.prompts import load_tokenizer, prompt_text
from lazytrain.data.rows import write_rows
from lazytrain.data.split import SplitSettings, split_rows
from lazytrain.errors import InvalidInput
from lazytrain.evaluate.evaluation import sample
from lazytrain.evaluate.generate import generate
from lazytrain.evaluate.initial import initial_model
from lazytrain.evaluate.run import Request, run_evaluation
from lazytrain.models.scales import model_config
from lazytrain.provenance import collect
from lazytrain.records import RunRecord, write

TOKENIZER = load_tokenizer("random", 384)


def _tiny(name="3B-mini", layers=2):
    config = model_config(name)
    config.num_hidden_layers = layers
    # The last layers: a hybrid model then has one of each type.
    config.layer_types = config.layer_types[-layers:]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    with torch.no_grad():  # larger weights: the argmax then depends on the prompt
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model


def _one_by_one(model, prompt, max_new_tokens):
    ids = TOKENIZER(prompt)["input_ids"]
    new = []
    with torch.no_grad():
        for _ in range(max_new_tokens):
            logits = model(input_ids=torch.tensor([ids + new])).logits
            token = int(logits[0, -1].argmax())
            if token == TOKENIZER.eos_token_id:
                break
            new.append(token)
    return TOKENIZER.decode(new, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["3B-mini", "27B-mini"])
def test_batched_generation_equals_single_generation(name):
    model = _tiny(name)
    prompts = [f"<|user|>{'word ' * n}?<|end|><|assistant|>" for n in (1, 7, 3, 12, 2)]
    texts = generate(model, TOKENIZER, prompts, 12, batch=3)
    assert texts == [_one_by_one(model, prompt, 12) for prompt in prompts]
    assert len(set(texts)) > 1
    assert model.training


def test_generation_stops_at_the_end_token():
    config = model_config("7B-mini")
    config.num_hidden_layers = 1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all logits are equal: argmax is token 0
    assert generate(model, TOKENIZER, ["a", "bcd"], 3, batch=2) == ["\x00" * 3] * 2
    hook = model.lm_head.register_forward_hook(
        lambda _, __, logits: logits.index_fill(
            -1, torch.tensor([TOKENIZER.eos_token_id]), 9.0
        )
    )
    assert generate(model, TOKENIZER, ["a", "bcd"], 3, batch=2) == ["", ""]
    hook.remove()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A split, its rows, and the folder of a run on them."""
    folder = tmp_path_factory.mktemp("run")
    rows = load_rows("synthetic", SyntheticSettings(num_questions=12)).rows
    write_rows(rows, folder / "rows.jsonl")
    write(split_rows(rows, SplitSettings(), source="s"), folder / "split.json")
    model = _tiny()
    model.save_pretrained(folder / "out" / "weights")
    TOKENIZER.save_pretrained(folder / "out" / "weights")
    record = RunRecord(
        system="lazytrain",
        scale="3B",
        model="3B-mini",
        stands_for="Qwen2.5-3B",
        accelerator="cpu",
        batch=8,
        seq_len=128,
        purpose="quality",
        device="x",
        status="ok",
        seeds={"weights": 5},
        provenance=collect("cpu"),
    )
    write(record, folder / "out" / "record.json")
    return folder


def test_an_evaluation_keeps_every_prediction_before_and_after(run_folder):
    weights = run_folder / "out" / "weights"
    found = run_evaluation(Request(weights, split=run_folder / "split.json", limit=6))
    assert (found.system, found.scale, found.stands_for) == (
        "lazytrain",
        "3B",
        "Qwen2.5-3B",
    )
    assert (found.num_rows, found.num_test_rows) == (6, 16)
    assert len(found.predictions) == len(found.before_predictions) == 6
    assert found.before == 0.0
    assert sum(total for _, total in found.by_type.values()) == 6
    assert found.distinct_answers > 3
    assert set(found.provenance.made_from) == {"split", "record", "weights"}
    initial = initial_model(_tiny(), 5, torch.device("cpu"))
    rows = load_rows("synthetic", SyntheticSettings(num_questions=12)).rows
    first = rows[found.before_predictions[0].row_id]
    budget = found.max_new_tokens
    text = generate(initial, TOKENIZER, [prompt_text(first, TOKENIZER)], budget, 1)
    assert found.before_predictions[0].text == text[0]


def test_pretrained_runs_are_compared_with_the_weights_they_began_with(
    run_folder, tmp_path
):
    """The pipeline's configuration names them; no option has to."""
    begun = initial_model(_tiny(), 9, torch.device("cpu"))
    begun.save_pretrained(tmp_path / "begun")
    purpose = Purpose(num_steps=1, warmup_steps=0, learning_rate=1e-3)
    settings = AcceleratorSettings(throughput=purpose, quality=purpose)
    config = PipelineConfig(
        weights=str(tmp_path / "begun"), accelerators={"cpu": settings}
    )
    (tmp_path / "config.json").write_text(config.model_dump_json())
    request = Request(
        run_folder / "out" / "weights",
        split=run_folder / "split.json",
        limit=3,
        config=tmp_path / "config.json",
        max_new_tokens=6,
    )
    found = run_evaluation(request)
    rows = load_rows("synthetic", SyntheticSettings(num_questions=12)).rows
    prompts = [prompt_text(rows[p.row_id], TOKENIZER) for p in found.before_predictions]
    texts = generate(begun, TOKENIZER, prompts, 6, 3)
    assert [p.text for p in found.before_predictions] == texts


@pytest.mark.slow
def test_a_gguf_file_answers_as_transformers_reads_it(tmp_path):
    """Transformers unpacks the file by itself: an independent truth."""
    path = gguf_or_skip()
    data = tmp_path / "test.jsonl"
    record = {"question": "What is the capital of France?", "answer": "#### Paris"}
    data.write_text(json.dumps(record))
    request = Request(path, data=str(data), before=False, max_new_tokens=8)
    found = run_evaluation(request)
    truth = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    tokenizer = load_tokenizer(str(path), 49152)
    row = load_rows(str(data)).rows[0]
    prompt = prompt_text(row, tokenizer)
    assert [found.predictions[0].text] == generate(truth, tokenizer, [prompt], 8, 1)
    assert "Paris" in found.predictions[0].text


def test_any_file_with_questions_and_answers_can_be_evaluated(run_folder, tmp_path):
    path = tmp_path / "test.jsonl"
    records = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(3)]
    path.write_text("\n".join(json.dumps(record) for record in records))
    weights = run_folder / "out" / "weights"
    request = Request(weights, data=str(path), before=False, max_new_tokens=4)
    found = run_evaluation(request)
    assert found.by_type == {"question": (0, 3)}
    assert (found.before, found.majority_baseline) == (None, 0.0)
    with pytest.raises(InvalidInput, match="template = 'other': choose one of"):
        run_evaluation(replace(request, template="other"))
    plain = run_evaluation(replace(request, template="plain"))
    assert plain.predictions != found.predictions


def test_a_run_without_a_model_passes_its_reason_on(run_folder, tmp_path):
    record = json.loads((run_folder / "out" / "record.json").read_text())
    record |= {"status": "oom", "reason": "too large"}
    (tmp_path / "record.json").write_text(json.dumps(record))
    request = Request(
        run_folder / "out" / "weights",
        split=run_folder / "split.json",
        record=tmp_path / "record.json",
    )
    found = run_evaluation(request)
    assert (found.status, found.reason) == ("oom", "too large")
    assert found.predictions == ()


def test_missing_parts_are_named(run_folder, tmp_path):
    with pytest.raises(InvalidInput, match=r"holds no config\.json"):
        run_evaluation(Request(tmp_path, data=str(run_folder / "rows.jsonl")))
    with pytest.raises(InvalidInput, match="give --split"):
        run_evaluation(Request(run_folder / "out" / "weights"))


def test_a_sample_depends_on_row_ids_and_the_seed_only():
    rows = load_rows("synthetic", SyntheticSettings(num_questions=10)).rows
    chosen = sample(rows, 7, 0)
    assert chosen == sample(rows[::-1], 7, 0)
    assert chosen != sample(rows, 7, 1)
    assert sample(rows, 0, 0) == sample(rows, 99, 0) == rows
