"""Data sets by name, described as in LLaMA-Factory's ``dataset_info.json``, and mixed.

A name that the description lacks may be a file, a folder, a hub id or ``synthetic``:
its shape is then told from its columns.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from lazytrain.config import SyntheticSettings
from lazytrain.data.description import INFO_FILE, described, read_info
from lazytrain.data.files import read_records
from lazytrain.data.metamath import (
    SYNTHETIC,
    LoadedRows,
    load_rows,
    normalise_records,
)
from lazytrain.data.rows import Row
from lazytrain.data.shapes import Shape
from lazytrain.data.tool_support import REMEDY, supported
from lazytrain.errors import InvalidInput
from lazytrain.records import Contract, sha256_text

log = logging.getLogger(__name__)

# Weights further apart leave one data set without a row, or repeat it without end.
MOST_RATIO: Final = 1e6
MOST_ROWS: Final = 1_000_000  # a mixture of fewer rows may repeat them freely
MOST_REPEATED: Final = 10  # times the rows at hand, of a larger mixture


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


def load_mixture(mixture: Mixture, tokenizer: Any = None) -> LoadedRows:
    """Read, convert and mix the data sets; rows are numbered anew.

    Args:
        mixture: Which, and how.
        tokenizer: Where given, rows whose tools its chat template does not render are
            left out and counted, before data sets are mixed by weight.

    Raises:
        InvalidInput: If a data set is unknown, unreadable or without a usable row, or
            a weight is not above zero, or the weights are too far apart.
    """
    if mixture.train_on_prompt and mixture.mask_history:
        given = "train_on_prompt, mask_history"
        raise InvalidInput(given, (True, True), "the one undoes the other; give one")
    if not mixture.names:
        raise InvalidInput("data", mixture.dataset, "name at least one data set")
    _check_weights(mixture.weights or {})
    parts: list[list[Row]] = []
    skipped: Counter[str] = Counter()
    for name in mixture.names:
        loaded = load_dataset(name, Path(mixture.dataset_dir), mixture.synthetic)
        limited = _limited(loaded.rows, mixture.max_samples, mixture.seed)
        loaded = _rendered(LoadedRows(limited, loaded.skipped), name, tokenizer)
        parts.append(loaded.rows)
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
        info = described(name, known[name], folder / INFO_FILE)
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


def _rendered(loaded: LoadedRows, name: str, tokenizer: Any) -> LoadedRows:
    """Leave out rows with tools that a tokenizer's template does not render.

    Raises:
        InvalidInput: If no row is left.
    """
    if tokenizer is None:
        return loaded
    rows, lost = supported(loaded.rows, tokenizer)
    if lost:
        reasons = ", ".join(f"{why}: {count}" for why, count in lost.items())
        if not rows:
            raise InvalidInput("data", name, f"no row is left ({reasons}); {REMEDY}")
        log.warning("%s: rows left out, %s; %s", name, reasons, REMEDY)
    return LoadedRows(rows, loaded.skipped | lost)


def _unknown(name: str, folder: Path, known: dict[str, Any]) -> InvalidInput:
    remedy = (
        f"is neither in {folder / INFO_FILE} ({', '.join(sorted(known))}) nor a file, "
        "a folder or a hub id"
    )
    return InvalidInput("data", name, remedy)


def _limited(rows: list[Row], most: int | None, seed: int) -> list[Row]:
    """Return at most so many rows, chosen by seed and place, in their order."""
    if most is None or most >= len(rows):
        return rows
    return sorted(_shuffled(rows, seed)[:most], key=lambda row: row.row_id)


def _shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    return sorted(rows, key=lambda row: sha256_text(f"{seed}:{row.row_id}"))


def _check_weights(weights: dict[str, float]) -> None:
    """Refuse weights that give no sane shares, before any data is read."""
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidInput(f"data.{name}", weight, "must be above zero")
    if not weights:
        return
    if max(weights.values()) / MOST_RATIO > min(weights.values()):
        remedy = (
            f"the largest weight may be {MOST_RATIO:,.0f} times the smallest at most; "
            "leave out the data set that has next to no share"
        )
        raise InvalidInput("data", weights, remedy)
    if not math.isfinite(sum(weights.values())):
        raise InvalidInput("data", weights, "give shares, such as 0.3 and 0.7")


def _mixed(parts: list[list[Row]], mixture: Mixture) -> list[list[Row]]:
    """Take from each data set the number of rows that its weight asks for."""
    weights = mixture.weights
    if weights is None:
        return parts
    shares = [weight / sum(weights.values()) for weight in weights.values()]
    totals = [len(part) / share for part, share in zip(parts, shares, strict=True)]
    total = min(totals) if mixture.strategy == "under" else max(totals)
    at_hand = sum(map(len, parts))
    most = max(MOST_ROWS, MOST_REPEATED * at_hand)
    if total > most:
        remedy = (
            f"over would repeat the {at_hand:,} rows up to {total:,.0f}, and at most "
            f"{most:,} are mixed; give weights nearer to the data sets' sizes, or "
            "strategy under"
        )
        raise InvalidInput("data", weights, remedy)
    return [
        _taken(part, round(total * share), mixture.seed)
        for part, share in zip(parts, shares, strict=True)
    ]


def _taken(rows: list[Row], count: int, seed: int) -> list[Row]:
    """Return ``count`` rows: whole rounds first, then a seeded sample, at least one."""
    rounds, rest = divmod(max(1, count), len(rows))
    return rows * rounds + _shuffled(rows, seed)[:rest]
