"""A YAML file of settings into a contract, with errors in the file's own words.

YAML and pydantic forgive what changes a run without a word: the second of two equal
keys wins, and ``yes`` is the number 1. Both are refused here.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from lazytrain.errors import InvalidInput
from lazytrain.records import M, first_problem

MERGE: Final = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key that is given twice."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        """Return a mapping of distinct keys."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                problem = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(
                    None, None, problem, key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_settings(kind: type[M], path: Path) -> M:
    """Read a YAML file into a contract.

    Raises:
        InvalidInput: If the file is missing, is no YAML, or breaks the contract; the
            message names the key, its value and the remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = yaml.load(text, Loader=_Loader)
    except FileNotFoundError as error:
        raise InvalidInput("path", str(path), "the file does not exist") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput("path", str(path), f"is not YAML: {error}") from error
    if not isinstance(raw, dict):
        remedy = "must hold lines of `key: value`; see config/examples"
        raise InvalidInput("path", str(path), remedy)
    _refuse_booleans(kind, raw, (), path)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _problem(error, kind, path) from error


def _problem(error: ValidationError, kind: type[BaseModel], path: Path) -> InvalidInput:
    """Return the first problem, with the key that an unknown one may stand for."""
    for item in error.errors():
        if item["type"] == "extra_forbidden":
            *above, name = item["loc"]
            known = sorted(_fields_at(kind, above))
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            field = ".".join(map(str, item["loc"]))
            remedy = f"is no key; {hint} (in {path})"
            return InvalidInput(field, item["input"], remedy)
    first = error.errors()[0]
    if first["type"] == "value_error" and not first["loc"]:
        remedy = first["msg"].removeprefix("Value error, ")
        return InvalidInput("settings", str(path), remedy)
    found = first_problem(error, path, kind.__name__)
    remedy = found.remedy.removeprefix("Value error, ")
    return InvalidInput(found.field, found.value, remedy)


def _fields_at(kind: Any, keys: Sequence[object]) -> set[str]:
    """Return the names of the contract below some keys; empty if there is none."""
    for key in keys:
        if _is_contract(kind):
            field = kind.model_fields.get(str(key))
            kind = field.annotation if field is not None else None
        else:  # a mapping of contracts
            kind = (*typing.get_args(kind), None, None)[1]
    return set(kind.model_fields) if _is_contract(kind) else set()


def _is_contract(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _refuse_booleans(kind: Any, raw: Any, keys: tuple[str, ...], path: Path) -> None:
    """Refuse true and false where a number is wanted.

    Raises:
        InvalidInput: Naming the key.
    """
    if isinstance(raw, bool) and not _allows(kind, bool):
        remedy = f"YAML reads this as true or false; write a value (in {path})"
        raise InvalidInput(".".join(keys), raw, remedy)
    if not isinstance(raw, dict):
        return
    for key, value in raw.items():
        inner = None
        if _is_contract(kind):
            field = kind.model_fields.get(str(key))
            inner = field.annotation if field is not None else None
        elif typing.get_origin(kind) is dict:
            inner = typing.get_args(kind)[1]
        if inner is not None:
            _refuse_booleans(inner, value, (*keys, str(key)), path)


def _allows(kind: Any, wanted: type) -> bool:
    """Say whether a type takes values of another."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_allows(part, wanted) for part in typing.get_args(kind))
    return kind is wanted or kind is Any
