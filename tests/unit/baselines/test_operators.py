"""DeepSpeed's operators are built for plain architectures."""

import os

import pytest

from lazytrain.baselines import operators


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9.0a", "9.0"),
        ("8.0 9.0a", "8.0;9.0"),
        ("9.0;9.0a;10.0f+PTX", "9.0;10.0+PTX"),
        ("7.5+PTX", "7.5+PTX"),
    ],
)
def test_variants_of_an_architecture_are_dropped(given, expected):
    assert operators.plain_architectures(given) == expected


@pytest.mark.parametrize("given", [None, "9.0a"])
def test_a_build_leaves_the_environment_as_it_was(given, tmp_path, monkeypatch):
    monkeypatch.setenv(operators.FOLDER, str(tmp_path))
    monkeypatch.delenv(operators.ARCHITECTURES, raising=False)
    if given is not None:
        monkeypatch.setenv(operators.ARCHITECTURES, given)
    with operators.one_build_at_a_time():
        assert os.environ.get(operators.ARCHITECTURES) == (given and "9.0")
    assert os.environ.get(operators.ARCHITECTURES) == given
    assert os.environ[operators.FOLDER] == str(tmp_path)


class Refusing:
    """A builder that ends as DeepSpeed's do where a library is missing."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __call__(self) -> "Refusing":
        return self

    def load(self, verbose: bool) -> None:
        raise RuntimeError(self._words)


def test_an_operator_that_cannot_be_built_names_what_it_lacks() -> None:
    """DeepSpeed's refusal becomes one line with the remedy; other errors stay."""
    words = "Unable to JIT load the async_io op due to it not being compatible"
    with pytest.raises(
        operators.OperatorRefused, match=r"async_io here \(Unable.*needs libaio"
    ):
        operators._load("async_io", Refusing(words))
    with pytest.raises(RuntimeError, match="nvcc"):
        operators._load("async_io", Refusing("nvcc not found"))
