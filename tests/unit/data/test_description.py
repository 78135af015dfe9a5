"""Descriptions as LLaMA-Factory writes them: one bad entry leaves the others usable."""

import json

import pytest

from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.errors import InvalidInput

RECORD = {"instruction": "q", "output": "a"}


def _loaded(folder, entry, **others):
    info = {"good": {"file_name": "good.json"}, "mine": entry, **others}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "good.json").write_text(json.dumps([RECORD]))
    return lambda name: load_mixture(Mixture(dataset=name, dataset_dir=str(folder)))


@pytest.mark.parametrize(
    "entry",
    [
        {"hf_hub_url": "a/b", "ms_hub_url": "c/d"},
        {"script_url": "own_loader"},
        {"file_name": "x.json", "ranking": True},
        {"file_name": "x.json", "colums": {}},
        {"file_name": "x.json", "num_samples": 0},
        {},
        7,
    ],
)
def test_only_the_selected_entry_is_checked(tmp_path, entry, caplog):
    load = _loaded(tmp_path, entry)
    assert [row.response for row in load("good").rows] == ["a"]
    assert not caplog.text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file_name": "x.json", "ranking": True}, r"mine\.ranking = True: .*without"),
        ({"script_url": "s"}, r"mine\.script_url = 's': .*give that as file_name"),
        ({"script_url": "s", "file_name": "good.json"}, r"mine\.script_url = 's'"),
        ({"ms_hub_url": "c/d"}, r"mine\.ms_hub_url = 'c/d': .*give hf_hub_url"),
        ({"om_hub_url": "c/d"}, r"mine\.om_hub_url = 'c/d': .*give hf_hub_url"),
        ({"cloud_file_name": "s3://x"}, r"mine\.cloud_file_name = 's3://x'"),
        ({"hf_hub_url": "a/b", "folder": "py"}, r"mine\.folder = 'py': .*download"),
        (
            {"file_name": "good.json", "columns": {"kto_tag": "label"}},
            r"mine\.columns\.kto_tag = 'label': .*good ones",
        ),
        ({"file_name": "good.json", "columns": 3}, r"mine\.columns = 3"),
        (7, "mine = 7"),
    ],
)
def test_what_decides_the_data_is_refused_by_name(tmp_path, entry, message):
    load = _loaded(tmp_path, entry)
    with pytest.raises(InvalidInput, match=message) as caught:
        load("mine")
    assert str(tmp_path / "dataset_info.json") in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "noted"),
    [
        ({"ms_hub_url": "c/d", "om_hub_url": "e/f"}, "mine: ms_hub_url, om_hub_url"),
        ({"cloud_file_name": "s3://x"}, "mine: cloud_file_name"),
        ({"file_sha1": "00ff"}, "mine: file_sha1"),
        ({"columns": {"images": "pictures"}}, "trained on as text alone"),
        ({"columns": {"chosen": "c", "rejected": "r"}}, "columns.chosen, columns.rej"),
        ({"ranking": False, "script_url": "", "folder": None}, ""),
    ],
)
def test_what_does_not_is_noted_and_read_over(tmp_path, extra, noted, caplog):
    load = _loaded(tmp_path, {"file_name": "good.json", **extra})
    assert [row.query for row in load("mine").rows] == ["q"]
    assert noted in caplog.text
    assert bool(noted) == bool(caplog.text)


def test_the_other_columns_still_count(tmp_path):
    columns = {"prompt": "output", "response": "instruction", "videos": "films"}
    load = _loaded(tmp_path, {"file_name": "good.json", "columns": columns})
    row = load("mine").rows[0]
    assert (row.query, row.response) == ("a", "q")


def test_a_hub_id_wins_over_what_is_beside_it(tmp_path, monkeypatch, caplog):
    asked = []

    def read(source, split, subset):
        asked.append((source, split, subset))
        return [RECORD]

    monkeypatch.setattr("lazytrain.data.registry.read_records", read)
    entry = {"hf_hub_url": "a/b", "ms_hub_url": "c/d", "script_url": "s"}
    load = _loaded(tmp_path, entry)
    assert len(load("mine").rows) == 1
    assert asked == [("a/b", "train", None)]
    assert "mine: ms_hub_url, script_url not used here" in caplog.text


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": \n', "5"])
def test_a_description_that_is_no_object(tmp_path, text):
    (tmp_path / "dataset_info.json").write_text(text)
    with pytest.raises(InvalidInput, match="dataset_info"):
        load_mixture(Mixture(dataset="a", dataset_dir=str(tmp_path)))
