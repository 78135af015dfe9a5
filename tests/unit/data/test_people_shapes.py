"""Rows as people write them: names that say what they are, and what would be lost."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from lazytrain.data.files import read_records
from lazytrain.data.metamath import normalise_records
from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.data.shapes import Shape, Tags
from lazytrain.errors import InvalidInput

TEXT = '{"query": "q", "response": "a"}\n'
PAIRS = [
    *(("query", "response"), ("question", "answer"), ("prompt", "completion")),
    *(("query", "answer"), ("question", "response"), ("prompt", "response")),
]


@pytest.mark.parametrize("names", PAIRS)
def test_a_question_and_its_answer_are_told_by_their_names(names):
    record = dict(zip(names, ("q", "a"), strict=True))
    row = normalise_records([record], "test", needs_answer=False).rows[0]
    assert (row.query, row.response) == ("q", "a")


def talk(column, role, content, asked, answered, **more):
    turns = [{role: asked, content: "q"}, {role: answered, content: "a"} | more]
    return {column: turns}


@pytest.mark.parametrize("column", ["conversations", "messages"])
@pytest.mark.parametrize("keys", [("from", "value"), ("role", "content")])
@pytest.mark.parametrize("names", [("human", "gpt"), ("user", "assistant")])
def test_turns_are_told_by_their_keys_and_roles(column, keys, names):
    record = talk(column, *keys, *names) | {"system": "s"}
    row = normalise_records([record], "test", needs_answer=False).rows[0]
    said = [(turn.role, turn.content) for turn in row.messages]
    assert said == [("system", "s"), ("user", "q"), ("assistant", "a")]


def test_a_mapped_tag_takes_the_place_of_the_usual_names():
    shape = Shape(formatting="sharegpt", tags=Tags(user_tag="me", assistant_tag="bot"))
    records = [
        talk("conversations", "from", "value", "me", "bot"),
        talk("conversations", "from", "value", "me", "gpt"),
    ]
    loaded = normalise_records(records, "test", shape, needs_answer=False)
    assert len(loaded.rows) == 1
    assert loaded.skipped == {"wrong roles": 1}


def test_a_turn_that_would_lose_something_is_counted():
    plain = talk("messages", "role", "content", "user", "assistant", weight=1)
    plain["messages"][1]["tool_calls"] = []
    lossy = talk("messages", "role", "content", "user", "assistant", weight=0)
    reason = "weight 0 is not kept"
    loaded = normalise_records([plain, lossy], "test", needs_answer=False)
    assert loaded.skipped == {reason: 1}
    with pytest.raises(InvalidInput, match=f"no row can be used .{reason}: 1.$"):
        normalise_records([lossy], "test", needs_answer=False)


def test_a_files_suffix_may_be_of_any_case(tmp_path):
    (tmp_path / "A.JSONL").write_text(TEXT)
    assert len(list(read_records(str(tmp_path / "A.JSONL")))) == 1
    assert len(list(read_records(str(tmp_path)))) == 1


def test_a_folder_with_held_out_files_says_that_all_are_read(tmp_path, caplog):
    (tmp_path / "train.jsonl").write_text(TEXT)
    (tmp_path / "dataset_info.json").write_text("{}")
    assert len(list(read_records(str(tmp_path)))) == 1
    assert not caplog.messages
    (tmp_path / "latest.jsonl").write_text(TEXT)
    assert len(list(read_records(str(tmp_path)))) == 2
    assert not caplog.messages
    (tmp_path / "test-00000.jsonl").write_text(TEXT)
    assert len(list(read_records(str(tmp_path)))) == 3
    assert caplog.messages[0].endswith("latest.jsonl, test-00000.jsonl, train.jsonl")


def test_a_description_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.jsonl").write_text(TEXT)
    info = json.dumps({"mine": {"file_name": "a.jsonl", "formatting": "query"}})
    (tmp_path / "dataset_info.json").write_text(info, encoding="utf-8-sig")
    loaded = load_mixture(Mixture(dataset="mine", dataset_dir=str(tmp_path)))
    assert [row.query for row in loaded.rows] == ["q"]


@pytest.mark.parametrize("start", [20, -60])
def test_a_spoilt_parquet_file_is_named(tmp_path, start):
    path = tmp_path / "a.parquet"
    rows = ["a"] * 1000
    parquet.write_table(pa.table({"query": rows, "response": rows}), path)
    data = bytearray(path.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"a\.parquet.*is not Parquet"):
        list(read_records(str(path)))


@pytest.mark.parametrize("fault", ["missing", "spoilt"])
def test_a_saved_data_set_that_is_not_whole_is_named(tmp_path, fault):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"query": "q", "response": "a"}]).save_to_disk(tmp_path)
    if fault == "missing":
        next(tmp_path.glob("*.arrow")).unlink()
    else:
        (tmp_path / "state.json").write_text("{")
    with pytest.raises(InvalidInput, match="is no whole saved data set"):
        list(read_records(str(tmp_path)))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"columns": {"prompt": "nope"}}, "maps prompt: nope, and no row has that"),
        ({"formating": "alpaca"}, "mine.formating = 'alpaca': is no key"),
        ({"tags": {"tool_calls_tag": "x"}}, "mine.tags.tool_calls_tag = .*is no key"),
        ({"hf_hub_url": "a/b"}, "mine = .*: give either file_name or hf_hub_url"),
        ("a.jsonl", "mine = 'a.jsonl': must be an object with file_name"),
    ],
)
def test_a_wrong_description_is_named_by_its_key(tmp_path, entry, message):
    (tmp_path / "a.jsonl").write_text('{"instruction": "q", "output": "a"}\n')
    if isinstance(entry, dict):
        entry = {"file_name": "a.jsonl"} | entry
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    with pytest.raises(InvalidInput, match=message):
        load_mixture(Mixture(dataset="mine", dataset_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([], "^data = .*name at least one"),
        ({"a": 0.0}, r"^data\.a = 0\.0: "),
        ({"a": 1e-9, "b": 1.0}, "^data = .*largest weight"),
        ("nowhere", "^data = 'nowhere': "),
    ],
)
def test_an_error_of_a_mixture_has_the_keys_own_name(tmp_path, named, message):
    with pytest.raises(InvalidInput, match=message):
        load_mixture(Mixture(dataset=named, dataset_dir=str(tmp_path)))
