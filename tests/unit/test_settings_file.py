"""A settings file is read as it is written, or refused by key, value and remedy."""

from __future__ import annotations

import pytest
import yaml

from lazytrain.config import PipelineConfig, load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.train.finetune_settings import FineTune

BASE = {
    "model": "3B-mini",
    "weights": "random",
    "out": "out",
    "batch": 2,
    "seq_len": 64,
    "num_steps": 3,
    "learning_rate": 1e-3,
}


def written(folder, text):
    path = folder / "settings.yaml"
    path.write_text(text)
    return path


def given(folder, **changes):
    return load_yaml(FineTune, written(folder, yaml.safe_dump(BASE | changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rte": 1}, "learning_rte = 1: .*did you mean learning_rate?"),
        ({"executor": {"boddy": "eager"}}, r"executor\.boddy = .*mean body?"),
        ({"xyz": 1}, "xyz = 1: is no key; known: accelerator, allow_truncation, batch"),
        ({"batch": True}, "batch = True: YAML reads this as true or false"),
        ({"learning_rate": True}, "learning_rate = True: YAML reads"),
        ({"optimizer": {"threads": False}}, r"optimizer\.threads = False: YAML"),
        ({"solver": {"gap": True}}, r"solver\.gap = True: YAML"),
        ({"data": 5}, "data = 5: write a name"),
        ({"data": None}, "data = None: write a name"),
        ({"data": ["a", 3]}, "data = .*write a name"),
        ({"data": {"a": "x"}}, "data = .*names with weights as numbers"),
        ({"optimizer": {"betas": [1.5, 0.9]}}, r"optimizer\.betas\.0 = 1\.5: "),
        ({"optimizer": {"betas": [0.9, -1]}}, r"optimizer\.betas\.1 = -1: "),
        ({"optimizer": {"learning_rate": 1e-3}}, "give learning_rate by itself"),
        ({"num_epochs": 1}, "give either num_steps or num_epochs"),
        ({"num_steps": None}, "give either num_steps or num_epochs"),
        (
            {"pack": True, "group_by_length": True},
            "give either pack or group_by_length",
        ),
        (
            {"train_on_prompt": True, "mask_history": True},
            "give either train_on_prompt or mask_history",
        ),
        ({"executor": {"chunk_bytes": "0"}}, r"executor\.chunk_bytes = '0': write"),
        ({"budgets": {"gpu_cap": "-4MiB"}}, r"budgets\.gpu_cap = '-4MiB': write"),
        ({"out": ""}, "out = None: Field required"),
        ({"out": None}, "out = None: Field required"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=f"^(settings = .*: )?{message}"):
        given(tmp_path, **changes)


@pytest.mark.parametrize("nothing", ["", None])
@pytest.mark.parametrize("key", ["template", "plan", "test_data", "scratch"])
def test_an_empty_value_is_none(tmp_path, key, nothing):
    assert given(tmp_path, **{key: nothing}) == given(tmp_path)


def test_numbers_may_be_written_as_yaml_writes_them(tmp_path):
    text = yaml.safe_dump({k: v for k, v in BASE.items() if k != "learning_rate"})
    read = load_yaml(FineTune, written(tmp_path, f"{text}learning_rate: 1e-5\n"))
    assert read.learning_rate == 1e-5  # a text, by YAML 1.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "key: value"),
        ("- a\n", "key: value"),
        ("model: a\nmodel: b\n", "'model' is given twice"),
        ("executor: {body: eager, body: compile}\n", "'body' is given twice"),
        ("model: [\n", "is not YAML"),
        ("\x00", "is not YAML"),
        ("? [a]\n: 1\n", "is not YAML"),
    ],
)
def test_what_is_no_settings_file_is_refused(tmp_path, text, message):
    with pytest.raises(InvalidInput, match=message):
        load_yaml(FineTune, written(tmp_path, text))


def test_a_merged_mapping_may_be_overridden(tmp_path):
    lines = yaml.safe_dump(BASE | {"batch": 4})
    text = f"{lines}solver: &one {{seed: 1, gap: 0.5}}\n"
    assert load_yaml(FineTune, written(tmp_path, text)).solver.gap == 0.5
    merged = f"{lines}synthetic: &s {{seed: 3}}\nsolver:\n  <<: *s\n  gap: 0.1\n"
    read = load_yaml(FineTune, written(tmp_path, merged))
    assert (read.solver.seed, read.solver.gap) == (3, 0.1)


def test_a_key_below_an_accelerator_has_its_neighbours_named(tmp_path):
    text = "accelerators: {cpu: {budgets: {gpu_capp: 4GiB}}}\n"
    with pytest.raises(InvalidInput, match=r"cpu\.budgets\.gpu_capp.*mean gpu_cap"):
        load_yaml(PipelineConfig, written(tmp_path, text))
    text = "accelerators: {cpu: {throughput: {num_steps: true}}}\n"
    with pytest.raises(InvalidInput, match=r"cpu\.throughput\.num_steps = True"):
        load_yaml(PipelineConfig, written(tmp_path, text))
