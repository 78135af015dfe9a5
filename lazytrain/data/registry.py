"""Data sets by name, described as in LLaMA-Factory's ``dataset_info.json``, and mixed.

A name that the description lacks may be a file, a folder, a hub id or ``synthetic``:
its shape is then told from its columns.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from lazytrain.config import SyntheticSettings
from lazytrain.data.files import read_records
from lazytrain.data.metamath import (
    SYNTHETIC,
    LoadedRows,
    load_rows,
    normalise_records,
)
from lazytrain.data.rows import Row
from lazytrain.data.shapes import Columns, Formatting, Shape, Tags
from lazytrain.errors import InvalidInput
from lazytrain.records import Contract, sha256_text

INFO_FILE = "dataset_info.json"


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


class Mixture(Contract):
    """Which data sets a training reads, and how.

    ``dataset`` is one name, a list of names (all their rows), or names with weights:
    the shares of their rows in the mixture. ``under`` takes no row twice and stops
    where a data set runs out; ``over`` uses every row and repeats the short ones.
    """

    dataset: str | tuple[str, ...] | dict[str, float]
    dataset_dir: str = "data"
    strategy: Literal["under", "over"] = "under"
    max_samples: int | None = Field(default=None, ge=1)
    train_on_prompt: bool = False
    mask_history: bool = False
    seed: int = 0
    synthetic: SyntheticSettings = SyntheticSettings()

    @property
    def weights(self) -> dict[str, float] | None:
        """The data sets' shares, or None if all rows are taken."""
        return self.dataset if isinstance(self.dataset, dict) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The data sets' names."""
        if isinstance(self.dataset, str):
            return (self.dataset,)
        return tuple(self.dataset)


def load_mixture(mixture: Mixture) -> LoadedRows:
    """Read, convert and mix the data sets; rows are numbered anew.

    Raises:
        InvalidInput: If a data set is unknown, unreadable or without a usable row, or
            a weight is not above zero.
    """
    if not mixture.names:
        raise InvalidInput("dataset", mixture.dataset, "name at least one data set")
    parts: list[list[Row]] = []
    skipped: Counter[str] = Counter()
    for name in mixture.names:
        loaded = load_dataset(name, Path(mixture.dataset_dir), mixture.synthetic)
        parts.append(_limited(loaded.rows, mixture.max_samples, mixture.seed))
        several = f"{name}: " if len(mixture.names) > 1 else ""
        skipped.update({several + why: n for why, n in loaded.skipped.items()})
    rows = [row for part in _mixed(parts, mixture) for row in part]
    changes = {
        "mask_history": mixture.mask_history,
        "train_on_prompt": mixture.train_on_prompt,
    }
    numbered = [
        row.model_copy(update=changes | {"row_id": n}) for n, row in enumerate(rows)
    ]
    return LoadedRows(numbered, dict(sorted(skipped.items())))


def load_dataset(
    name: str, folder: Path, synthetic: SyntheticSettings | None = None
) -> LoadedRows:
    """Return one data set's rows; an answer need not be marked as final.

    Args:
        name: In the description, or ``synthetic``, a file, a folder or a hub id.
        folder: Where the description is.
        synthetic: Settings of the generator.

    Raises:
        InvalidInput: If it is unknown, unreadable, or has no usable row.
    """
    known = read_info(folder)
    if name in known:
        info = known[name]
        shape = Shape(formatting=info.formatting, columns=info.columns, tags=info.tags)
        records = read_records(info.source(folder), info.split, info.subset)
        loaded = normalise_records(records, name, shape, needs_answer=False)
        return LoadedRows(_limited(loaded.rows, info.num_samples, 0), loaded.skipped)
    if name == SYNTHETIC:
        return load_rows(name, synthetic)
    try:
        return normalise_records(read_records(name), name, needs_answer=False)
    except InvalidInput as error:
        if known and "no such file" in error.remedy:
            raise _unknown(name, folder, known) from error
        raise


def read_info(folder: Path) -> dict[str, DatasetInfo]:
    """Read a folder's ``dataset_info.json``; without one, no names are known.

    Raises:
        InvalidInput: If an entry has an unknown key or a wrong value.
    """
    path = folder / INFO_FILE
    if not path.is_file():
        return {}
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("dataset_info", str(path), f"is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidInput("dataset_info", str(path), "must be an object of data sets")
    return {name: _entry(name, entry, path) for name, entry in raw.items()}


def _entry(name: str, entry: Any, path: Path) -> DatasetInfo:
    try:
        return DatasetInfo.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([name, *map(str, first["loc"])])
        remedy = f"{first['msg']} (in {path})"
        raise InvalidInput(field, first.get("input"), remedy) from error


def _unknown(name: str, folder: Path, known: dict[str, DatasetInfo]) -> InvalidInput:
    remedy = (
        f"is neither in {folder / INFO_FILE} ({', '.join(sorted(known))}) nor a file, "
        "a folder or a hub id"
    )
    return InvalidInput("dataset", name, remedy)


def _limited(rows: list[Row], most: int | None, seed: int) -> list[Row]:
    """Return at most so many rows, chosen by seed and place, in their order."""
    if most is None or most >= len(rows):
        return rows
    return sorted(_shuffled(rows, seed)[:most], key=lambda row: row.row_id)


def _shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    return sorted(rows, key=lambda row: sha256_text(f"{seed}:{row.row_id}"))


def _mixed(parts: list[list[Row]], mixture: Mixture) -> list[list[Row]]:
    """Take from each data set the number of rows that its weight asks for."""
    weights = mixture.weights
    if weights is None:
        return parts
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidInput(f"dataset.{name}", weight, "must be above zero")
    shares = [weight / sum(weights.values()) for weight in weights.values()]
    totals = [len(part) / share for part, share in zip(parts, shares, strict=True)]
    total = min(totals) if mixture.strategy == "under" else max(totals)
    return [
        _taken(part, round(total * share), mixture.seed)
        for part, share in zip(parts, shares, strict=True)
    ]


def _taken(rows: list[Row], count: int, seed: int) -> list[Row]:
    """Return ``count`` rows: whole rounds first, then a seeded sample, at least one."""
    rounds, rest = divmod(max(1, count), len(rows))
    return rows * rounds + _shuffled(rows, seed)[:rest]
