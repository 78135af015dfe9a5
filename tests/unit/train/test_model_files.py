"""Weights, step files and model sources on disk."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, T5Config

from lazytrain.baselines.initial import build_model
from lazytrain.data.prompts import load_tokenizer
from lazytrain.errors import InvalidInput
from lazytrain.models.scales import model_config
from lazytrain.records import StepRecord
from lazytrain.train.sinks import JsonLines, LogProgress, Sinks, Wandb, describe
from lazytrain.train.source import load_source
from lazytrain.train.weights_io import save_pretrained

CPU = torch.device("cpu")


def tiny(name="3B-mini"):
    config = model_config(name)
    config.num_hidden_layers = 2
    config.layer_types = config.layer_types[:2]
    return config


def saved(folder, name="3B-mini", shard_bytes=1 << 30):
    config = tiny(name)
    model = build_model(config, 1, torch.float32, CPU)
    tokenizer = load_tokenizer("random", config.vocab_size)
    save_pretrained(folder, model.named_parameters(), config, tokenizer, shard_bytes)
    return model


@pytest.mark.parametrize("name", ["3B-mini", "7B-mini", "27B-mini"])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 100_000], ids=["one", "shards"])
def test_saved_weights_give_the_same_logits(tmp_path, name, shard_bytes):
    model = saved(tmp_path / "weights", name, shard_bytes)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        assert torch.equal(expected, again(ids, use_cache=False).logits)
    source = load_source(str(tmp_path / "weights"), None)
    assert source.state_dict is not None
    for key, parameter in model.named_parameters():
        assert torch.equal(source.state_dict[key], parameter)
    assert len(source.tokenizer("ab")["input_ids"]) == 2


def test_saving_again_replaces_the_folder_whole(tmp_path):
    saved(tmp_path / "weights", shard_bytes=100_000)
    saved(tmp_path / "weights")
    names = {path.name for path in (tmp_path / "weights").iterdir()}
    assert "model.safetensors" in names
    assert not any(name.startswith("model-") for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_failure_while_saving_leaves_the_old_folder(tmp_path):
    saved(tmp_path / "weights")
    before = (tmp_path / "weights" / "model.safetensors").read_bytes()

    def broken():
        yield "a", torch.zeros(2)
        raise KeyboardInterrupt

    config = tiny()
    with pytest.raises(KeyboardInterrupt):
        save_pretrained(tmp_path / "weights", broken(), config, None)
    assert (tmp_path / "weights" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_weights_of_another_shape_name_the_difference(tmp_path):
    saved(tmp_path / "weights")
    with pytest.raises(InvalidInput, match="num_hidden_layers is 2"):
        load_source(str(tmp_path / "weights"), "3B-mini")


@pytest.mark.parametrize("kind", [BertConfig, T5Config])
def test_a_model_that_is_no_decoder_is_refused(tmp_path, kind):
    if kind is BertConfig:
        config = BertConfig(hidden_size=8, num_attention_heads=2, is_decoder=False)
    else:
        config = T5Config(d_model=8)
    config.save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match="decoder"):
        load_source(str(tmp_path), None)


def test_an_unreachable_hub_id_is_an_error_with_a_way_on(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="weights: random"):
        load_source("nobody/nothing-of-this-name", "3B-mini")


def test_a_folder_without_weights_is_an_error(tmp_path):
    tiny().save_pretrained(tmp_path)
    load_tokenizer("random", 384).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        load_source(str(tmp_path), None)


def record(step=1, **changes):
    values = {
        "step": step,
        "loss": 1.5,
        "grad_norm": 2.0,
        "learning_rate": 0.1,
        "step_s": 0.5,
        "real_tokens": 10,
        "padded_tokens": 16,
        "supervised_tokens": 4,
    }
    return StepRecord(**(values | changes))


def test_steps_get_their_name_when_they_are_complete(tmp_path):
    path = tmp_path / "run" / "steps.jsonl"
    with Sinks(JsonLines(path)) as sinks:
        sinks.put(record(1))
        sinks.put(record(2))
        assert not path.exists()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert [p.name for p in path.parent.iterdir()] == ["steps.jsonl"]


def test_an_interruption_leaves_whole_lines_under_another_name(tmp_path):
    path = tmp_path / "steps.jsonl"

    def interrupted():
        with Sinks(JsonLines(path)) as sinks:
            sinks.put(record(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not path.exists()
    partial = (tmp_path / "steps.partial.jsonl").read_text()
    assert json.loads(partial)["step"] == 1


def test_a_log_has_first_last_and_evaluated_steps(capsys):
    progress = LogProgress(5, "run")
    for number in range(1, 6):
        progress.put(record(number, eval_loss=1.0 if number == 3 else None))
    progress.close(True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split()[1] for line in captured.err.splitlines()] == [
        "1/5",
        "3/5",
        "5/5",
    ]
    assert "skipped" in describe(record(skipped=True))


def test_a_broken_tracker_stops_nothing(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb", reason="the tracking extra is not installed")

    def fail(**_options):
        raise wandb.Error("no network")

    monkeypatch.setattr(wandb, "init", fail)
    with Sinks(Wandb("offline", "run", tmp_path)) as sinks:
        sinks.put(record())
    assert "no network" in caplog.text


def test_a_missing_tracker_stops_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with Sinks(Wandb("online", "run", tmp_path)) as sinks:
        sinks.put(record())
    assert "W&B is off" in caplog.text


def test_an_offline_tracker_writes_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the tracking extra is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with Sinks(Wandb("offline", "run", tmp_path)) as sinks:
        sinks.put(record())
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
