"""Data sets by description, in every shape, mixed; and every way to get one wrong."""

import json
from collections import Counter

import pytest

from lazytrain.data.metamath import normalise_records
from lazytrain.data.registry import Mixture, load_mixture, read_info
from lazytrain.errors import InvalidInput


def _roles(row):
    return [(message.role, message.content) for message in row.messages]


def _folder(tmp_path, info, **files):
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    for name, records in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    return str(tmp_path)


def _rows(records, **changes):
    return normalise_records(records, "test", needs_answer=False, **changes).rows


def test_alpaca_with_input_system_and_history(tmp_path):
    record = {
        "instruction": "Add.",
        "input": "1 and 2",
        "output": "3",
        "system": "Be brief.",
        "history": [["hi", "hello"]],
    }
    folder = _folder(tmp_path, {"a": {"file_name": "a.json"}}, a=[record])
    row = load_mixture(Mixture(dataset="a", dataset_dir=folder)).rows[0]
    assert _roles(row) == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "Add.\n1 and 2"),
        ("assistant", "3"),
    ]


def test_mapped_columns(tmp_path):
    info = {
        "a": {
            "file_name": "a.json",
            "columns": {"prompt": "frage", "query": "dazu", "response": "antwort"},
        }
    }
    record = {"frage": "Add.", "dazu": "1+2", "antwort": 3}
    folder = _folder(tmp_path, info, a=[record])
    row = load_mixture(Mixture(dataset="a", dataset_dir=folder)).rows[0]
    assert (row.query, row.response) == ("Add.\n1+2", "3")


def test_sharegpt_with_tools_and_mapped_tags(tmp_path):
    plain = {
        "conversations": [
            {"from": "human", "value": "weather?"},
            {"from": "function_call", "value": '{"name": "look"}'},
            {"from": "observation", "value": "rain"},
            {"from": "gpt", "value": "Rain."},
        ],
        "system": "S",
    }
    tagged = {
        "talk": [
            {"who": "system", "what": "S"},
            {"who": "me", "what": "weather?"},
            {"who": "it", "what": "Rain."},
        ]
    }
    info = {
        "plain": {"file_name": "plain.json", "formatting": "sharegpt"},
        "tagged": {
            "file_name": "tagged.json",
            "formatting": "sharegpt",
            "columns": {"messages": "talk"},
            "tags": {
                "role_tag": "who",
                "content_tag": "what",
                "user_tag": "me",
                "assistant_tag": "it",
            },
        },
    }
    folder = _folder(tmp_path, info, plain=[plain], tagged=[tagged])
    mixture = Mixture(
        dataset=("plain", "tagged"), dataset_dir=folder, mask_history=True
    )
    first, second = load_mixture(mixture).rows
    assert _roles(first) == [
        ("system", "S"),
        ("user", "weather?"),
        ("assistant", ""),
        ("tool", "rain"),
        ("assistant", "Rain."),
    ]
    assert [call.name for call in first.messages[2].calls] == ["look"]
    assert _roles(second)[1:] == [("user", "weather?"), ("assistant", "Rain.")]
    assert (first.row_id, second.row_id) == (0, 1)
    assert first.mask_history
    assert second.mask_history


def test_openai_messages_are_told_from_their_columns():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    record = {
        "messages": [
            {"role": "developer", "content": "S"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "ok"},
        ]
    }
    assert _roles(_rows([record])[0]) == [
        ("system", "S"),
        ("user", "a b"),
        ("assistant", "ok"),
    ]


def _talk(*turns):
    return {"messages": [{"role": r, "content": c} for r, c in turns]}


GOOD = _talk(("user", "q"), ("assistant", "a"))
BAD = [
    ({"messages": []}, "empty messages"),
    ({"messages": None}, "empty messages"),
    (_talk(("system", "only")), "empty messages"),
    (_talk(("user", "q"), ("assistant", "a"), ("user", "x")), "no answer"),
    (_talk(("user", "q"), ("assistant", "  ")), "no answer"),
    (_talk(("user", ""), ("assistant", "a")), "empty question"),
    (_talk(("assistant", "a"), ("user", "q")), "wrong roles"),
    (_talk(("user", "q"), ("user", "q"), ("assistant", "a")), "wrong roles"),
    (_talk(("user", "q"), ("system", "s"), ("assistant", "a")), "wrong roles"),
    (_talk(("alien", "q"), ("assistant", "a")), "wrong roles"),
    ({"messages": [{"role": "user"}]}, "missing field"),
    ({"messages": ["hi"]}, "missing field"),
    ({"text": "hi"}, "missing field"),
    ({"instruction": "q"}, "missing field"),
    ({"query": "q"}, "missing field"),
    ({"query": "q", "response": {"a": 1}}, "content is not text"),
    (_talk(("user", [{"type": "image"}]), ("assistant", "a")), "content is not text"),
    ({"instruction": "q", "output": "a", "history": ["x"]}, "wrong history"),
]


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_unusable_records_are_counted_by_reason(record, reason):
    loaded = normalise_records([record, GOOD], "test", needs_answer=False)
    assert loaded.skipped == {reason: 1}
    assert [row.row_id for row in loaded.rows] == [0]
    with pytest.raises(InvalidInput, match="test"):
        normalise_records([record], "test")


def test_repeated_ids(caplog):
    records = [
        {"id": 1, "query": "q", "response": "a"},
        {"id": 1, "query": "q", "response": "a"},
        {"id": 1, "query": "q", "response": "other"},
        {"id": "1", "query": "q", "response": "a"},
        {"query": "q", "response": "a"},
    ]
    loaded = normalise_records(records, "test", needs_answer=False)
    assert loaded.skipped == {"duplicate id": 1}
    assert [row.response for row in loaded.rows] == ["a", "other", "a", "a"]
    assert "1 rows reuse an id, kept" in caplog.text


@pytest.fixture
def two_sets(tmp_path):
    info = {name: {"file_name": f"{name}.json"} for name in ("small", "large")}
    make = lambda name, n: [  # noqa: E731
        {"instruction": f"{name} {i}", "output": "x"} for i in range(n)
    ]
    return _folder(tmp_path, info, small=make("small", 10), large=make("large", 100))


@pytest.mark.parametrize(
    ("weights", "strategy", "counts"),
    [
        (None, "under", {"small": 10, "large": 100}),
        ({"small": 1, "large": 1}, "under", {"small": 10, "large": 10}),
        ({"small": 0.2, "large": 0.6}, "under", {"small": 10, "large": 30}),
        ({"small": 1, "large": 1}, "over", {"small": 100, "large": 100}),
        ({"small": 1, "large": 20}, "under", {"small": 5, "large": 100}),
    ],
)
def test_mixing_by_weight(two_sets, weights, strategy, counts):
    mixture = Mixture(
        dataset=weights or ("small", "large"), dataset_dir=two_sets, strategy=strategy
    )
    rows = load_mixture(mixture).rows
    assert Counter(row.query.split()[0] for row in rows) == counts
    assert [row.row_id for row in rows] == list(range(len(rows)))
    each = Counter(row.query for row in rows)
    limit = 1 if strategy == "under" else 10
    assert max(each.values()) <= limit
    assert rows == load_mixture(mixture).rows


@pytest.mark.parametrize(
    ("weights", "strategy", "message"),
    [
        ({"small": 1e-300, "large": 1e300}, "under", "1,000,000 times the smallest"),
        ({"small": 1e-300, "large": 1e300}, "over", "1,000,000 times the smallest"),
        ({"small": 1, "large": 1e9}, "over", "1,000,000 times the smallest"),
        ({"small": 1e308, "large": 1e308}, "under", "give shares"),
        ({"small": 1e6, "large": 1}, "over", "110 rows up to 100,000,100"),
    ],
)
def test_weights_that_are_too_far_apart_are_refused(
    two_sets, weights, strategy, message
):
    mixture = Mixture(dataset=weights, dataset_dir=two_sets, strategy=strategy)
    with pytest.raises(InvalidInput, match=message):
        load_mixture(mixture)


def test_weights_are_checked_before_anything_is_read(tmp_path):
    weights = {"gone.json": 1.0, "gone-too.json": 1e9}
    with pytest.raises(InvalidInput, match="times the smallest"):
        load_mixture(Mixture(dataset=weights, dataset_dir=str(tmp_path)))


def test_small_data_sets_may_be_repeated_often(two_sets):
    weights = {"small": 1000.0, "large": 1.0}
    mixture = Mixture(dataset=weights, dataset_dir=two_sets, strategy="over")
    counts = Counter(row.query.split()[0] for row in load_mixture(mixture).rows)
    assert counts == {"small": 100_000, "large": 100}


def test_samples_are_limited_and_seeded(two_sets):
    some = [
        load_mixture(
            Mixture(dataset="large", dataset_dir=two_sets, max_samples=7, seed=seed)
        ).rows
        for seed in (0, 0, 1)
    ]
    assert [len(rows) for rows in some] == [7, 7, 7]
    assert some[0] == some[1]
    assert some[0] != some[2]


def test_files_need_no_description(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(GOOD))
    mixture = Mixture(dataset=str(path), dataset_dir=str(tmp_path / "none"))
    assert load_mixture(mixture).rows[0].query == "q"
    assert load_mixture(Mixture(dataset="synthetic")).rows[0].type == "AnsAug"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file_name": "a.json", "colums": {}}, r"a\.colums"),
        ({"file_name": "a.json", "columns": {"promt": "x"}}, r"a\.columns\.promt"),
        ({}, "either file_name or hf_hub_url"),
        ({"file_name": "a.json", "formatting": "csv"}, r"a\.formatting"),
        ({"file_name": "gone.json"}, "no such file"),
    ],
)
def test_wrong_descriptions_name_the_key(tmp_path, entry, message):
    folder = _folder(tmp_path, {"a": entry}, b=[])
    with pytest.raises(InvalidInput, match=message):
        load_mixture(Mixture(dataset="a", dataset_dir=folder))


def test_unknown_names_and_weights(two_sets, tmp_path):
    with pytest.raises(InvalidInput, match=r"\(large, small\)"):
        load_mixture(Mixture(dataset="medium", dataset_dir=two_sets))
    with pytest.raises(InvalidInput, match="above zero"):
        load_mixture(
            Mixture(dataset={"small": 0.0, "large": 1.0}, dataset_dir=two_sets)
        )
    with pytest.raises(InvalidInput, match="at least one"):
        load_mixture(Mixture(dataset=()))
    (tmp_path / "dataset_info.json").write_text("[")
    with pytest.raises(InvalidInput, match="is no JSON"):
        read_info(tmp_path)
