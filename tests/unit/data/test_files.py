"""Every source format, and every way in which a file can be wrong."""

import json

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from lazytrain.data.files import read_records
from lazytrain.errors import InvalidInput

RECORDS = [
    {"query": "é ☃ 😀?", "response": "The answer is: 1"},
    {"query": "two?", "response": "The answer is: 2"},
]


def _write_json(path):
    path.write_text(json.dumps(RECORDS), encoding="utf-8")


def _write_wrapped(path):
    path.write_text(json.dumps({"version": 1, "data": RECORDS}), encoding="utf-8")


def _write_lines(path):
    text = "\n\n".join(json.dumps(r, ensure_ascii=False) for r in RECORDS)
    path.write_text(text + "\n", encoding="utf-8")


def _write_with_mark(path):
    path.write_text(
        "\n".join(json.dumps(r, ensure_ascii=False) for r in RECORDS),
        encoding="utf-8-sig",
    )


def _write_parquet(path):
    parquet.write_table(pa.Table.from_pylist(RECORDS), path)


def _write_arrow_file(path):
    table = pa.Table.from_pylist(RECORDS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)


def _write_arrow_stream(path):
    table = pa.Table.from_pylist(RECORDS)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("a.json", _write_json),
        ("wrapped.json", _write_wrapped),
        ("lines-under-another-name.json", _write_lines),
        ("a.jsonl", _write_lines),
        ("mark.jsonl", _write_with_mark),
        ("a.parquet", _write_parquet),
        ("file.arrow", _write_arrow_file),
        ("stream.arrow", _write_arrow_stream),
    ],
)
def test_every_format_gives_the_same_records(tmp_path, name, writer):
    path = tmp_path / name
    writer(path)
    assert list(read_records(str(path))) == RECORDS


def test_a_folder_is_read_file_by_file(tmp_path):
    _write_lines(tmp_path / "1.jsonl")
    _write_parquet(tmp_path / "2.parquet")
    (tmp_path / "notes.txt").write_text("no data")
    assert list(read_records(str(tmp_path))) == RECORDS * 2


def test_a_saved_data_set_is_read_by_split(tmp_path):
    whole = datasets.Dataset.from_list(RECORDS)
    whole.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": whole}).save_to_disk(str(tmp_path / "many"))
    assert list(read_records(str(tmp_path / "one"))) == RECORDS
    assert list(read_records(str(tmp_path / "many"))) == RECORDS
    with pytest.raises(InvalidInput, match="no split 'dev', only train"):
        list(read_records(str(tmp_path / "many"), split="dev"))


def test_a_byte_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    good = json.dumps(RECORDS[0], ensure_ascii=False).encode()
    path.write_bytes(good + b"\n" + '{"query": "caf\xe9"}'.encode("latin-1") + b"\n")
    with pytest.raises(InvalidInput, match=r"line 2 is not UTF-8 \(byte 15 of it\)"):
        list(read_records(str(path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"query": 1}\n{"query": \n', "line 2 is not JSON"),
        ("a.jsonl", b"[1, 2]\n", "line 1 is not an object"),
        ("a.json", b'[{"query": 1},\n 7]', "entry 1 is not an object"),
        ("a.json", b'[{"query": 1},\n', "line 2 is not JSON"),
        ("a.json", b"", "the file is empty"),
        ("a.parquet", b"not parquet at all", "is not Parquet"),
        ("a.arrow", b"not arrow at all", "is not Arrow"),
        ("a.csv", b"query,response\n", "is no data file"),
    ],
)
def test_broken_files_say_what_is_wrong_and_where(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_records(str(path)))


def test_missing_paths_and_empty_folders(tmp_path):
    with pytest.raises(InvalidInput, match="no such file or folder"):
        read_records(str(tmp_path / "gone.jsonl"))
    with pytest.raises(InvalidInput, match="no such file or folder"):
        read_records("")
    with pytest.raises(InvalidInput, match="holds no"):
        list(read_records(str(tmp_path)))


def test_an_unreachable_hub_id_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="data: synthetic"):
        list(read_records("nobody/no-such-set"))
