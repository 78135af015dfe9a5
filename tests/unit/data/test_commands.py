"""``lazytrain data`` from the outside."""

import json

import pytest
import yaml
from tool_rows import ONE, SAME, speaking
from typer.testing import CliRunner

from lazytrain.cli import root
from lazytrain.data.rows import read_rows
from lazytrain.data.split import side_rows
from lazytrain.errors import InvalidInput
from lazytrain.records import LeakRecord, SplitManifest, read

PURPOSE = {"num_steps": 1, "warmup_steps": 0, "learning_rate": 1e-3}
CONFIG = {
    "synthetic": {"num_questions": 30},
    "accelerators": {"cpu": {"throughput": PURPOSE, "quality": PURPOSE}},
}


def _run(*arguments):
    result = CliRunner().invoke(root, ["data", *map(str, arguments)])
    if isinstance(result.exception, InvalidInput):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def _split(config, tmp_path, *more):
    manifest, rows = tmp_path / "split.json", tmp_path / "rows.jsonl"
    _run("split", "--config", config, "--out", manifest, "--rows", rows, *more)
    return read(SplitManifest, manifest), read_rows(rows)


def test_split_writes_a_manifest_and_the_rows_it_speaks_of(config, tmp_path):
    manifest, rows = _split(config, tmp_path)
    assert (manifest.source, manifest.num_rows) == ("synthetic", 120)
    assert (len(manifest.train.row_ids), len(manifest.test.row_ids)) == (84, 36)
    assert len(side_rows(rows, manifest.test)) == 36
    assert manifest.shared_questions == 0
    _run("leak", "--split", tmp_path / "split.json", "--out", tmp_path / "leak.json")
    leak = read(LeakRecord, tmp_path / "leak.json")
    assert leak.grouped == (0, 36)
    assert leak.paper[0] > 30


def test_split_counts_what_it_skips(config, tmp_path):
    source = tmp_path / "gsm.jsonl"
    records = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(10)]
    records += [{"question": "x?", "answer": "no mark"}, {"other": 1}]
    source.write_text("\n".join(map(json.dumps, records)))
    manifest, rows = _split(config, tmp_path, "--data", source)
    assert manifest.skipped == {"missing field": 1, "no answer": 1}
    assert len(rows) == 10


def test_a_failed_split_leaves_nothing(config, tmp_path):
    source = tmp_path / "one.jsonl"
    source.write_text(json.dumps({"question": "1?", "answer": "#### 1"}))
    with pytest.raises(InvalidInput, match=r"1 usable row\(s\)"):
        _split(config, tmp_path, "--data", source)
    assert not (tmp_path / "split.json").exists()
    assert not (tmp_path / "rows.jsonl").exists()


def test_inspect_shows_examples_lengths_and_drops(tmp_path):
    source = tmp_path / "talks.jsonl"
    talk = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "☃"}]
    long = [talk[0], {"role": "assistant", "content": "x" * 90}]
    records = [{"messages": talk}, {"messages": long}, {"messages": []}]
    source.write_text("\n".join(map(json.dumps, records)))
    shown = _run("inspect", "--data", source, "--seq-len", 64).stdout
    for part in ("<|user|>é?<|end|><|assistant|>", "☃<|end|>", "answer too long"):
        assert part in shown
    for part in ("skipped, empty messages", "supervised tokens", "length of rows"):
        assert part in shown


def test_inspect_shows_calls_and_counts_what_a_template_leaves_out(tmp_path):
    source = tmp_path / "talks.jsonl"
    plain = {"query": "q", "response": "a"}
    broken = ONE | {"tools": "[{"}
    records = [plain, ONE, SAME, broken]
    source.write_text("\n".join(map(json.dumps, records)))
    speaking().save_pretrained(tmp_path / "tokenizer")
    data = ("inspect", "--data", source, "--tokenizer")
    shown = _run(*data, tmp_path / "tokenizer").stdout
    for part in ("<call>", "rows that describe tools", "skipped, tools is not JSON"):
        assert part in shown
    shown = _run(*data, "byte-level").stdout
    assert "skipped, chat template leaves out tools" in shown
    assert "<call>" not in shown
