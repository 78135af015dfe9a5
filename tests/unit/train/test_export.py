"""What is exported loads elsewhere as what was trained, or is not left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from smollm2 import gguf_or_skip
from streaming import small_config
from test_checkpoint_kill import make_request
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from lazytrain.baselines.initial import build_model
from lazytrain.commands.export import app
from lazytrain.commands.train import app as train_app
from lazytrain.data.prompts import load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.train import export as exporting
from lazytrain.train.export import NotVerified, Origin, export, find_origin
from lazytrain.train.probe import probe_ids, trainer_logits
from lazytrain.train.run import run_row
from lazytrain.train.source import Source, load_source
from lazytrain.train.weights_io import save_pretrained

CPU = torch.device("cpu")


def origin(name="3B-mini", dtype=torch.float32, layers=4) -> Origin:
    config = small_config(name, layers)
    model = build_model(config, 1, dtype, CPU)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    tokenizer = load_tokenizer("random", config.vocab_size)
    return Origin(Source(config, weights, tokenizer), Path("here"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["3B-mini", "7B-mini", "27B-mini"])
def test_plain_transformers_gives_the_trainers_logits(tmp_path, name, dtype):
    given = origin(name, dtype)
    done = export(given, tmp_path / "out", shard_bytes=150_000)
    assert done.logit_difference is not None
    assert done.logit_difference <= exporting.TOLERANCE
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 1
    assert all((tmp_path / "out" / file).is_file() for file in files)
    # A tied head is left out, as the library does.
    is_tied = name == "3B-mini"
    assert ("lm_head.weight" in index["weight_map"]) != is_tied
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == dtype
    ids = probe_ids(384)
    weights = given.weights
    expected = trainer_logits(given.source.config, weights, ids, torch.float32)
    with torch.no_grad():
        found = model.float()(ids, use_cache=False).logits
    scale = expected.abs().max()
    assert (found - expected).abs().max() <= exporting.TOLERANCE * scale
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    turns = [{"role": "user", "content": "Grüße 😀"}]
    assert tokenizer.apply_chat_template(
        turns, tokenize=False
    ) == given.source.tokenizer.apply_chat_template(turns, tokenize=False)
    generation = GenerationConfig.from_pretrained(tmp_path / "out")
    assert generation.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_other_settings_for_generation_are_kept(tmp_path):
    given = origin()
    own = GenerationConfig(eos_token_id=[256, 260], repetition_penalty=1.1)
    source = Source(given.source.config, given.weights, given.source.tokenizer, own)
    export(Origin(source, Path("here")), tmp_path / "out")
    again = load_source(str(tmp_path / "out"), None).generation
    assert again.eos_token_id == [256, 260]
    assert again.repetition_penalty == 1.1


def spoil_value(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-40] ^= 64
    (folder / "model.safetensors").write_bytes(data)


def spoil_config(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] = 10.0
    path.write_text(json.dumps(config))


def spoil_tie(folder):
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False})
    )


def spoil_template(folder):
    (folder / "chat_template.jinja").write_text("{{ messages }}")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_value, "differs after loading"),
        (spoil_config, "logits differ"),
        (spoil_tie, "lm_head"),
        (spoil_template, "chat template"),
    ],
)
def test_a_fault_in_what_was_written_is_found(tmp_path, monkeypatch, spoil, reason):
    def faulty(folder, *arguments):
        save_pretrained(folder, *arguments)
        spoil(folder)

    monkeypatch.setattr(exporting, "save_pretrained", faulty)
    with pytest.raises(NotVerified, match=reason):
        export(origin(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_missing_weights_and_a_taken_folder_are_refused(tmp_path):
    given = origin()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(InvalidInput, match="not empty"):
        export(given, tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep"
    weights = dict(given.weights)
    del weights["model.layers.2.mlp.down_proj.weight"]
    source = Source(given.source.config, weights, given.source.tokenizer)
    with pytest.raises(InvalidInput, match="down_proj"):
        export(Origin(source, Path("here")), tmp_path / "out")
    with pytest.raises(InvalidInput, match="no whole checkpoint"):
        find_origin(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    request = make_request(folder)
    run_row(request)
    return request.out


def weight(folder):
    return load_source(str(folder), None).state_dict["model.norm.weight"]


def test_a_run_its_checkpoints_and_its_weights_are_found(run, tmp_path):
    def command(*arguments):
        result = CliRunner().invoke(app, ["export", *map(str, arguments), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    whole = command(run, tmp_path / "a")
    assert whole["origin"] == str(run / "weights")
    assert torch.equal(weight(tmp_path / "a"), weight(run / "weights"))
    last = command(run / "checkpoints" / "step-000004", tmp_path / "b")
    assert last["num_parameters"] == whole["num_parameters"]
    assert torch.equal(weight(tmp_path / "b"), weight(run / "weights"))
    command(run / "checkpoints" / "step-000003", tmp_path / "c")
    assert not torch.equal(weight(tmp_path / "c"), weight(run / "weights"))
    half = command(tmp_path / "a", tmp_path / "d", "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16"
    assert weight(tmp_path / "d").dtype == torch.bfloat16


def test_a_run_that_was_cut_short_gives_its_newest_checkpoint(run, tmp_path):
    part = tmp_path / "run"
    (part / "checkpoints").mkdir(parents=True)
    for step in ("step-000003", "step-000004"):
        (part / "checkpoints" / step).symlink_to(run / "checkpoints" / step)
    assert find_origin(part).path.name == "step-000004"
    (part / "checkpoints" / "step-000004").unlink()
    (part / "checkpoints" / "step-000004").mkdir()
    assert find_origin(part).path.name == "step-000003"
    listed = CliRunner().invoke(app, ["checkpoints", str(part)])
    assert listed.stdout.splitlines()[0].startswith("step-000004\tbroken: not compl")
    assert listed.stdout.splitlines()[1] == "step-000003\twhole, 3 updates"


def test_a_folder_without_checkpoints_is_no_empty_list(tmp_path):
    listed = CliRunner().invoke(app, ["checkpoints", str(tmp_path)])
    assert isinstance(listed.exception, InvalidInput)
    assert "no checkpoints" in str(listed.exception)


@pytest.mark.slow
def test_a_real_model_trains_twenty_steps_and_exports(tmp_path):
    path = str(gguf_or_skip())
    questions = [
        {
            "query": f"What is {n} plus {n + 1}?",
            "response": f"The answer is: {2 * n + 1}",
        }
        for n in range(60)
    ]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in questions))
    settings = {
        "model": path,
        "data": str(data),
        "out": str(tmp_path / "run"),
        "accelerator": "cpu",
        "batch": 2,
        "seq_len": 64,
        "num_steps": 20,
        "learning_rate": 1e-4,
        "eval_rows": 4,
        "exact_match": {"after": "sample", "rows": 4, "max_new_tokens": 24},
        "save_every": 10,
        "keep_checkpoints": 1,
        "budgets": {"gpu_cap": "1GiB", "cpu_activations": "64MiB"},
        "solver": {"time_limit_s": 5},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    arguments = ["train", str(tmp_path / "train.yaml"), "--json"]
    result = CliRunner().invoke(train_app, arguments)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["num_parameters"] == 134_515_008
    assert record["last_loss"] < 0.7 * record["first_loss"]
    done = export(find_origin(tmp_path / "run"), tmp_path / "out")
    assert done.logit_difference is not None
    assert done.logit_difference <= 1e-5
