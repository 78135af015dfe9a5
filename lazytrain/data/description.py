"""Entries of ``dataset_info.json`` as LLaMA-Factory writes it, read one at a time.

Only the entry that is asked for is checked. Keys that this program cannot serve are
refused where they decide which data is trained on, and left out with a note elsewhere.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError, model_validator

from lazytrain.data.json_text import BadJson, parse_json
from lazytrain.data.shapes import Columns, Formatting, Tags
from lazytrain.errors import InvalidInput
from lazytrain.records import Contract

log = logging.getLogger(__name__)

INFO_FILE: Final = "dataset_info.json"
_ELSEWHERE: Final = ("ms_hub_url", "om_hub_url", "cloud_file_name")
_UNSERVED: Final = (*_ELSEWHERE, "script_url", "ranking", "folder", "file_sha1")
_MEDIA: Final = ("images", "videos", "audios")
_UNSERVED_COLUMNS: Final = (*_MEDIA, "chosen", "rejected", "kto_tag")


class DatasetInfo(Contract):
    """One entry of ``dataset_info.json``."""

    file_name: str | None = None
    hf_hub_url: str | None = None
    formatting: Formatting = "alpaca"
    columns: Columns = Columns()
    tags: Tags = Tags()
    subset: str | None = None
    split: str = "train"
    num_samples: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_one_source(self) -> DatasetInfo:
        if (self.file_name is None) == (self.hf_hub_url is None):
            raise ValueError("give either file_name or hf_hub_url")
        return self

    def source(self, folder: Path) -> str:
        """Return the path, relative to the description's folder, or the hub id."""
        if self.file_name is not None:
            return str(folder / self.file_name)
        return str(self.hf_hub_url)


def read_info(folder: Path) -> dict[str, Any]:
    """Read a folder's ``dataset_info.json``, its entries unchecked.

    Without the file, no names are known.

    Raises:
        InvalidInput: If the file is no JSON object.
    """
    path = folder / INFO_FILE
    if not path.is_file():
        return {}
    try:
        raw = parse_json(path.read_text(encoding="utf-8-sig"))
    except (BadJson, UnicodeDecodeError) as error:
        raise InvalidInput("dataset_info", str(path), f"is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidInput("dataset_info", str(path), "must be an object of data sets")
    return raw


def described(name: str, entry: Any, path: Path) -> DatasetInfo:
    """Check one entry.

    Args:
        name: Of the data set.
        entry: As :func:`read_info` gave it.
        path: Of the description, for messages.

    Raises:
        InvalidInput: If it has an unknown key or a wrong value, or a key that decides
            which data is trained on and cannot be served.
    """
    if isinstance(entry, dict):
        entry = _served(name, entry, path)
    try:
        return DatasetInfo.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([name, *map(str, first["loc"])])
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = "is no key that is known here; correct it, or take it out"
        elif first["type"] == "model_type":
            said = "must be an object with file_name or hf_hub_url"
        remedy = f"{said} (in {path})"
        raise InvalidInput(field, first.get("input"), remedy) from error


def _served(name: str, entry: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return an entry without the keys that have no use here; note those with a value.

    Raises:
        InvalidInput: If one of them decides which data is trained on.
    """
    columns = entry.get("columns")
    columns = columns if isinstance(columns, dict) else {}
    given = {key: entry[key] for key in _UNSERVED if entry.get(key)}
    given |= {
        f"columns.{key}": columns[key] for key in _UNSERVED_COLUMNS if columns.get(key)
    }
    for key, value in given.items():
        remedy = _remedy(key, entry)
        if remedy:
            raise InvalidInput(f"{name}.{key}", value, f"{remedy} (in {path})")
    if given:
        log.warning(
            "%s: %s not used here, read over (in %s)", name, ", ".join(given), path
        )
    if any(f"columns.{key}" in given for key in _MEDIA):
        log.warning("%s: its rows are trained on as text alone", name)
    rest = {key: entry[key] for key in entry if key not in _UNSERVED}
    if columns:
        kept = {key: columns[key] for key in columns if key not in _UNSERVED_COLUMNS}
        rest["columns"] = kept
    return rest


def _remedy(key: str, entry: dict[str, Any]) -> str:
    """Say what to do about a key that decides which data it is; empty: none."""
    has_hub = bool(entry.get("hf_hub_url"))
    if key == "ranking":
        return (
            "pairs of a better and a worse answer are not trained on; write the better "
            "answers to a data set of their own and describe it without ranking"
        )
    if key == "columns.kto_tag":
        return (
            "answers marked as bad would be trained on too; write the good ones to a "
            "data set of their own and leave this column out"
        )
    if key == "script_url" and not has_hub:
        return (
            "a loading script is not run; write what it yields to a .json, .jsonl, "
            ".parquet or .arrow file and give that as file_name"
        )
    if key == "folder" and has_hub:
        return (
            "one folder of a hub data set cannot be chosen; download it and give it as "
            "file_name, or leave the key out to read the whole data set"
        )
    if key in _ELSEWHERE and not (has_hub or entry.get("file_name")):
        return (
            "is not read from there; give hf_hub_url, or download the data and give "
            "its file or folder as file_name"
        )
    return ""
