"""Raw records from any data source: local files and folders, or a hub id.

JSON (a list of objects, or one object holding such a list), JSON lines, Parquet, Arrow
(file or stream), a folder of those, and a folder made by ``Dataset.save_to_disk``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from lazytrain.data.json_text import BadJson, parse_json
from lazytrain.errors import InvalidInput

log = logging.getLogger(__name__)
Record = dict[str, Any]

_EXAMPLE_KEYS: Final = (
    "query",
    "question",
    "messages",
    "conversations",
    "instruction",
)
SUFFIXES: Final = (".json", ".jsonl", ".parquet", ".arrow")
# Notes on data sets, which lie beside them.
_DESCRIPTIONS: Final = ("dataset_info.json", "dataset_infos.json")
_HELD_OUT: Final = re.compile(r"(^|[-_.])(test|val|valid|validation|dev|eval)([-_.]|$)")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def read_records(
    source: str, split: str = "train", subset: str | None = None
) -> Iterator[Record]:
    """Yield the records of a local file, a folder or a hub data set.

    Args:
        source: A path, or ``owner/name`` on the hub; an existing path wins.
        split: Which split of a hub data set or saved data set is read.
        subset: Which configuration of a hub data set is read.

    Raises:
        InvalidInput: If the source is missing, unreadable or unreachable.
    """
    path = Path(source)
    if path.is_dir() and source:  # an empty text would be the folder at hand
        return _folder(path, split)
    if path.is_file():
        return _file(path)
    if path.suffix.lower() in SUFFIXES or not _HUB_ID.fullmatch(source):
        raise InvalidInput("data", source, "there is no such file or folder")
    return _hub(source, split, subset)


def _file(path: Path) -> Iterator[Record]:
    readers: dict[str, Callable[[Path], Iterator[Record]]] = {
        ".json": _json,
        ".jsonl": _json_lines,
        ".parquet": _parquet,
        ".arrow": _arrow,
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        known = ", ".join(SUFFIXES)
        raise InvalidInput("data", str(path), f"is no data file; use one of {known}")
    if path.stat().st_size == 0:
        raise InvalidInput("data", str(path), "the file is empty")
    return readers[suffix](path)


def _folder(path: Path, split: str) -> Iterator[Record]:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        yield from _saved(path, split)
        return
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix.lower() in SUFFIXES and file.name not in _DESCRIPTIONS
    )
    if not files:
        known = ", ".join(SUFFIXES)
        raise InvalidInput("data", str(path), f"the folder holds no {known} file")
    if any(_HELD_OUT.search(file.stem) for file in files) and len(files) > 1:
        names = ", ".join(file.name for file in files)
        log.warning("%s: all of its files are read together: %s", path, names)
    for file in files:
        yield from _file(file)


def _saved(path: Path, split: str) -> Iterator[Record]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"is no whole saved data set ({error}); save it again"
        raise InvalidInput("data", str(path), remedy) from error
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            remedy = f"has no split {split!r}, only {', '.join(saved)}"
            raise InvalidInput("data", str(path), remedy)
        saved = saved[split]
    yield from map(_unpadded, saved)


def _hub(source: str, split: str, subset: str | None) -> Iterator[Record]:
    import datasets

    try:
        data = datasets.load_dataset(source, subset, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        remedy = (
            "no such file, and the hub did not give it as a data set "
            f"({type(error).__name__}). Without a network, download it elsewhere and "
            "give the path of its .json, .jsonl, .parquet or .arrow file, or set "
            "data: synthetic for the built-in generator"
        )
        raise InvalidInput("data", source, remedy) from error
    yield from map(_unpadded, data)


def _decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; a byte that is not UTF-8 is named with its line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                remedy = f"line {number} is not UTF-8 (byte {error.start + 1} of it)"
                raise InvalidInput("data", str(path), remedy) from error
            yield number, text


def _json_lines(path: Path) -> Iterator[Record]:
    for number, text in _decoded_lines(path):
        if not text.strip():
            continue
        try:
            record = parse_json(text)
        except BadJson as error:
            remedy = f"line {number} {error.reason}"
            raise InvalidInput("data", str(path), remedy) from error
        if not isinstance(record, dict):
            raise InvalidInput("data", str(path), f"line {number} is not an object")
        yield record


def _json(path: Path) -> Iterator[Record]:
    text = "".join(line for _, line in _decoded_lines(path))
    try:
        data = parse_json(text)
    except BadJson as error:
        if error.is_extra:  # JSON lines under the name .json
            yield from _json_lines(path)
            return
        raise InvalidInput("data", str(path), str(error)) from error
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if len(lists) == 1 and not _is_record(data) else [data]
    if not isinstance(data, list):
        remedy = f"must hold a list of objects, not only {data!r:.40}"
        raise InvalidInput("data", str(path), remedy)
    for place, record in enumerate(data):
        if not isinstance(record, dict):
            raise InvalidInput("data", str(path), f"entry {place} is not an object")
        yield record


def _is_record(data: Record) -> bool:
    """Whether one JSON object is an example itself and not a wrapper of examples."""
    return any(key in data for key in _EXAMPLE_KEYS)


def _unpadded(record: Record) -> Record:
    """Take out what Arrow adds to objects within a turn, such as schemas of tools.

    All objects of a column have the keys of all its rows there; absent ones are null.
    A turn's own keys stay.
    """
    return {key: _without_nulls(value, 0) for key, value in record.items()}


def _without_nulls(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item, depth) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_nulls(item, depth + 1)
        for key, item in value.items()
        if item is not None or depth == 0
    }


def _unreadable(path: Path, kind: str, error: Exception) -> Exception:
    """Return what to raise: the file system's own errors stay what they are."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return InvalidInput("data", str(path), f"is not {kind}: {error}")


def _parquet(path: Path) -> Iterator[Record]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                yield from map(_unpadded, batch.to_pylist())
    except (ArrowException, OSError) as error:
        raise _unreadable(path, "Parquet", error) from error


def _arrow(path: Path) -> Iterator[Record]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, "Arrow", error) from error
    for batch in table.to_batches(max_chunksize=4096):
        yield from map(_unpadded, batch.to_pylist())
