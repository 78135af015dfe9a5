"""Files between stages: atomic, hashed, strict; a plan refuses what cannot be run."""

import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lazytrain.errors import InvalidInput
from lazytrain.records import (
    Provenance,
    Side,
    StepRecord,
    canonical_json,
    read,
    sha256_file,
    sha256_text,
    write,
    write_lines,
    write_text,
)
from lazytrain.schedule.plan import Block, Boundary, Group, Home, Plan, Solve, blocks_of


def side():
    return Side(row_ids=(1, 2), sha256="0" * 64)


def test_a_contract_survives_its_file(tmp_path):
    write(side(), tmp_path / "deep" / "side.json")
    assert read(Side, tmp_path / "deep" / "side.json") == side()


def test_writing_leaves_no_temporary_file_and_a_readable_one(tmp_path):
    write(side(), tmp_path / "side.json")
    assert [path.name for path in tmp_path.iterdir()] == ["side.json"]
    assert (tmp_path / "side.json").stat().st_mode & 0o777 == 0o644


def test_an_interrupted_write_keeps_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "side.json"
    write(side(), path)
    before = path.read_bytes()

    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text("half", path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["side.json"]


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left.*side\.json"):
        write_text("half", tmp_path / "side.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"row_ids": [1], "sha256": "0", "more": 1}', "more"),
        ('{"row_ids": ["x"], "sha256": "0"}', r"row_ids\.0"),
        ('{"row_ids": [1]}', "sha256"),
        ('{"row_ids": [1', "Side"),
        ("", "Side"),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path, text, said):
    path = tmp_path / "side.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as caught:
        read(Side, path)
    assert "side.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"nowhere\.json.*does not exist"):
        read(Side, tmp_path / "nowhere.json")
    with pytest.raises(InvalidInput, match="is a folder"):
        read(Side, tmp_path)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(InvalidInput, match=r"below.*cannot be read"):
        read(Side, tmp_path / "file" / "below")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    """Root may read everything, so the refusal is made here."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(tmp_path), "read_bytes", refuse)
    with pytest.raises(InvalidInput, match=r"side\.json.*Permission denied"):
        read(Side, tmp_path / "side.json")


def test_a_message_does_not_show_the_whole_file(tmp_path):
    path = tmp_path / "side.json"
    for text in (" " * 5000 + "{", '{"more": "' + "x" * 5000 + '"}'):
        path.write_text(text)
        with pytest.raises(InvalidInput) as caught:
            read(Side, path)
        assert len(str(caught.value)) < 600
        assert "side.json" in str(caught.value)


def test_no_nan_reaches_a_file():
    values = {
        "step": 1,
        "loss": float("nan"),
        "grad_norm": None,
        "learning_rate": 0.1,
        "step_s": 1.0,
        "real_tokens": 1,
        "padded_tokens": 1,
        "supervised_tokens": 1,
    }
    with pytest.raises(ValidationError, match="loss"):
        StepRecord(**values)


def test_canonical_json_is_blind_to_the_order_of_keys():
    one = Provenance.model_validate(provenance() | {"versions": {"a": "1", "b": "2"}})
    two = Provenance.model_validate(provenance() | {"versions": {"b": "2", "a": "1"}})
    assert canonical_json(one) == canonical_json(two)
    assert canonical_json(one) != canonical_json(one, exclude={"commit"})


def provenance():
    return {
        "commit": "c",
        "dirty": False,
        "command": "x",
        "started": "now",
        "hostname_sha256": "h",
        "device": "d",
        "cpu": "c",
        "cores": 1,
        "memory_bytes": 1,
        "versions": {},
    }


def test_hashes_of_texts_and_files_agree(tmp_path):
    write_text("grüße\n", tmp_path / "a")
    assert sha256_file(tmp_path / "a") == sha256_text("grüße\n")


def test_lines_are_one_record_each(tmp_path):
    write_lines([side(), side()], tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["row_ids"] for line in lines] == [[1, 2], [1, 2]]


def plan(letters="GCRG", **values):
    homes = tuple(
        {"G": Home.GPU, "C": Home.CPU, "N": Home.NVME, "R": Home.RECOMPUTE}[x]
        for x in letters
    )
    layers = len(homes) - 1
    given = {
        "name": "p",
        "model": "m",
        "instance_sha256": "0" * 64,
        "num_layers": layers,
        "layer_types": ("full_attention",) * layers,
        "batch": 4,
        "seq_len": 8,
        "boundaries": tuple(Boundary(home=home, size_bytes=8) for home in homes),
        "blocks": blocks_of(homes),
        "groups": (
            Group(
                sequences=4,
                micro_batch=2,
                order="layer-major",
                save_level=("inputs",) * layers,
            ),
        ),
        "solve": Solve(status="optimal", method="milp", objective_s=0.0),
    }
    return Plan(**given | values)


def test_blocks_lie_between_kept_boundaries():
    assert [(b.start, b.end) for b in plan("GCRRG").blocks] == [(0, 1), (1, 4)]
    assert plan("GCRG").count(Home.RECOMPUTE) == 1


def test_the_hash_leaves_out_how_long_the_solve_took():
    quick = plan()
    slow = plan(
        solve=Solve(status="optimal", method="milp", objective_s=0.0, seconds=9.0)
    )
    assert quick.sha256 == slow.sha256
    assert quick.sha256 != plan("GGRG").sha256


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"blocks": (Block(start=0, end=3),)}, "blocks must run"),
        ({"num_layers": 4}, "boundaries has 4 entries"),
        ({"batch": 5}, "groups hold 4 sequences"),
        ({"weight_slots": 2, "prefetch_distance": 2}, "weight_slots = 2"),
        ({"version": 2}, "version"),
        ({"colour": 1}, "colour"),
    ],
)
def test_an_impossible_plan_is_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        plan(**values)


@pytest.mark.parametrize("letters", ["RGG", "GGR"])
def test_the_first_and_last_boundary_need_a_home(letters):
    with pytest.raises(ValidationError, match="blocks must run"):
        plan(letters)


def test_a_micro_batch_divides_its_group():
    with pytest.raises(ValidationError, match="does not divide"):
        Group(sequences=5, micro_batch=2, order="layer-major", save_level=("inputs",))


@settings(max_examples=60)
@given(st.text(alphabet="GCNR", min_size=0, max_size=12))
def test_blocks_tile_the_layers(middle):
    made = plan(f"G{middle}G")
    assert made.blocks[0].start == 0
    assert made.blocks[-1].end == made.num_layers
    covered = [i for b in made.blocks for i in range(b.start, b.end)]
    assert covered == list(range(made.num_layers))
    assert read_back(made) == made


def read_back(made):
    return Plan.model_validate_json(made.model_dump_json())
