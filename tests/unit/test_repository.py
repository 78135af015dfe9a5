"""Generated and duplicated files are in step with what they were made from."""

import tomllib
from pathlib import Path

import pytest
import yaml

from lazytrain.errors import InvalidInput
from lazytrain.fingerprint import fingerprint, modules
from lazytrain.schemas import schemas

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    cut = min(requirement.find(c) % 1000 for c in "<>=[")
    return requirement[:cut].lower()


BOUNDS = {
    name_of(requirement): requirement
    for group in (
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
    )
    for requirement in group
}


@pytest.mark.parametrize("name", sorted(schemas()))
def test_schemas_are_made_from_the_types(name):
    kept = (ROOT / "workflow" / "schemas" / name).read_text()
    assert kept == schemas()[name], "run `make schemas`"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_conda_environments_have_the_bounds_of_pyproject(path):
    wanted = yaml.safe_load(path.read_text())["dependencies"]
    assert f"python{PROJECT['requires-python']}" in wanted
    (pip,) = (entry["pip"] for entry in wanted if isinstance(entry, dict))
    for requirement in pip:
        assert requirement == BOUNDS[name_of(requirement)]
    assert path.with_suffix(".post-deploy.sh").exists()


def test_every_rules_environment_exists():
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for line in path.read_text().splitlines():
            if "envs/" in line:
                relative = line.strip().strip('"')
                assert (path.parent / relative).resolve().is_file()


def test_fingerprints_cover_every_file_of_a_stage():
    names = {path.name for path in modules("optim")}
    assert {"adamw.py", "dispatch.cpp"} <= names
    assert fingerprint("optim") != fingerprint("schedule")
    assert fingerprint("optim") == fingerprint("optim")


def test_a_misspelt_stage_is_refused():
    with pytest.raises(InvalidInput, match="optimm"):
        fingerprint("optimm")
