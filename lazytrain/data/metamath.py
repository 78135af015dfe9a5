"""Rows for training to an exact-match accuracy, from any source (paper, Section 4.1).

MetaMathQA's fields are ``query``, ``response``, ``original_question`` and ``type``;
GSM8K's are ``question`` and ``answer``, whose last line is ``#### number``. Other
shapes are read as :mod:`lazytrain.data.shapes` knows them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lazytrain.config import SyntheticSettings
from lazytrain.data.answers import extract_answer
from lazytrain.data.files import Record, read_records
from lazytrain.data.rows import Row, content_sha256
from lazytrain.data.shapes import Shape, convert
from lazytrain.data.synthetic import generate
from lazytrain.data.values import Unusable
from lazytrain.errors import InvalidInput

log = logging.getLogger(__name__)

__all__ = ["LoadedRows", "Row", "load_rows", "normalise_records"]

SYNTHETIC: Final = "synthetic"


@dataclass(frozen=True)
class LoadedRows:
    """Usable rows, numbered from 0, and how many were left out for which reason."""

    rows: list[Row]
    skipped: dict[str, int] = field(default_factory=dict)


def load_rows(
    source: str,
    synthetic: SyntheticSettings | None = None,
    *,
    needs_answer: bool = True,
) -> LoadedRows:
    """Load rows from the generator, a local file or folder, or a hub id.

    Args:
        source: Which.
        synthetic: Settings of the generator.
        needs_answer: Skip rows whose response marks no final answer.

    Raises:
        InvalidInput: If the source cannot be read, lacks the fields, or leaves no row.
    """
    if source == SYNTHETIC:
        settings = synthetic or SyntheticSettings()
        return LoadedRows(generate(settings.num_questions, settings.seed))
    return normalise_records(read_records(source), source, needs_answer=needs_answer)


def normalise_records(
    records: Iterable[Record],
    source: str,
    shape: Shape | None = None,
    *,
    needs_answer: bool = True,
) -> LoadedRows:
    """Turn raw records into rows; one that cannot be used is counted by its reason.

    Args:
        records: What the source holds.
        source: Its name in errors.
        shape: How to read them; told from their columns if None.
        needs_answer: Skip rows whose response marks no final answer.

    Raises:
        InvalidInput: If no record has the fields, or none is usable.
    """
    shape = shape or Shape()
    rows: list[Row] = []
    left_out = LeftOut()
    columns: set[str] = set()
    identities = Identities()
    for place, record in enumerate(records, start=1):
        columns |= record.keys()
        try:
            row = convert(record, shape, len(rows))
            identities.check(record.get("id"), row)
            if needs_answer and extract_answer(row.response) is None:
                raise Unusable("no answer")
            rows.append(row)
        except Unusable as error:
            left_out.add(error, place)
    absent = _absent(shape, columns)
    if not rows:
        raise nothing_usable(source, columns, left_out, needs_answer, absent)
    left_out.tell(source)
    identities.tell(source)
    if "tools" in absent:
        told = "%s: its description maps tools: %s, and no row has that"
        log.warning(told, source, absent["tools"])
    return LoadedRows(rows, dict(sorted(left_out.counts.items())))


def _absent(shape: Shape, columns: set[str]) -> dict[str, str]:
    """Return what a description maps to columns that no record has."""
    mapped = shape.columns.model_dump(exclude_none=True)
    return {name: said for name, said in mapped.items() if said not in {"", *columns}}


@dataclass
class LeftOut:
    """Records that cannot be used: how many by reason, and what is known of the first.

    Attributes:
        counts: By reason.
        firsts: By reason, where the first such record is and what to do about it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, str] = field(default_factory=dict)

    def add(self, error: Unusable, place: int) -> None:
        """Note a record by its place, counted from 1."""
        self.counts[error.reason] += 1
        if error.detail:
            self.firsts.setdefault(error.reason, f"row {place}: {error.detail}")

    def tell(self, source: str) -> None:
        """Log what is known of the first records."""
        for reason, first in self.firsts.items():
            told = "%s: %d rows left out, %s; the first is %s"
            log.warning(told, source, self.counts[reason], reason, first)


class Identities:
    """Records with an ``id``: an exact repeat is refused, other contents are kept.

    Attributes:
        shared: Rows that carry the id of an earlier row with other contents.
    """

    def __init__(self) -> None:
        self._seen: dict[str | int, set[str]] = {}
        self.shared = 0

    def check(self, identity: object, row: Row) -> None:
        """Note a row's id.

        Raises:
            Unusable: If the same row came under the same id before.
        """
        if not isinstance(identity, str | int):
            return
        digest = content_sha256(row)
        known = self._seen.setdefault(identity, set())
        if digest in known:
            raise Unusable("duplicate id")
        self.shared += bool(known)
        known.add(digest)

    def tell(self, source: str) -> None:
        """Log how many rows share an id."""
        if self.shared:
            log.warning("%s: %d rows reuse an id, kept", source, self.shared)


def _fields_remedy(columns: set[str], absent: Mapping[str, str]) -> str:
    """Say which columns rows need, or which ones a description names in vain."""
    names = ", ".join(sorted(columns)) or "none"
    found = names.encode(errors="backslashreplace").decode()
    if absent:
        said = ", ".join(f"{name}: {column}" for name, column in absent.items())
        return f"its description maps {said}, and no row has that; found: {found}"
    return (
        "its rows need query and response, question and answer, prompt and "
        "completion, instruction and output, or messages or conversations whose "
        f"turns have role and content, or from and value; found: {found}"
    )


def nothing_usable(
    source: str,
    columns: set[str],
    left_out: LeftOut,
    needs_answer: bool,
    absent: Mapping[str, str],
) -> InvalidInput:
    """Explain an empty data set: no record at all, wrong fields, or no answers.

    Args:
        source: Its name.
        columns: Those that its records have.
        left_out: Records by the reason that they are not used.
        needs_answer: Whether responses without a marked answer are among those.
        absent: Columns that the description maps to and no record has.
    """
    skipped = left_out.counts
    if not skipped:
        return InvalidInput("data", source, "the data set is empty")
    if set(skipped) == {"missing field"}:
        return InvalidInput("data", source, _fields_remedy(columns, absent))
    reasons = ", ".join(f"{reason}: {count}" for reason, count in skipped.items())
    firsts = "".join(f"; {first}" for first in left_out.firsts.values())
    marks = "; for exact match a response must end in 'The answer is: X' or '#### X'"
    marks = marks if needs_answer else ""
    remedy = f"no row can be used ({reasons}){firsts}{marks}"
    return InvalidInput("data", source, remedy)
