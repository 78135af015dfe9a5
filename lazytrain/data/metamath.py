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
from lazytrain.data.shapes import Shape, Unusable, convert, has_tools
from lazytrain.data.synthetic import generate
from lazytrain.errors import InvalidInput

log = logging.getLogger(__name__)

__all__ = ["LoadedRows", "Row", "load_rows", "normalise_records"]

SYNTHETIC: Final = "synthetic"


@dataclass(frozen=True)
class LoadedRows:
    """Usable rows, numbered from 0, and how many were left out for which reason."""

    rows: list[Row]
    skipped: dict[str, int] = field(default_factory=dict)


def load_rows(source: str, synthetic: SyntheticSettings | None = None) -> LoadedRows:
    """Load rows from the generator, a local file or folder, or a hub id.

    Raises:
        InvalidInput: If the source cannot be read, lacks the fields, or leaves no row.
    """
    if source == SYNTHETIC:
        settings = synthetic or SyntheticSettings()
        return LoadedRows(generate(settings.num_questions, settings.seed))
    return normalise_records(read_records(source), source)


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
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    columns: set[str] = set()
    identities = Identities()
    num_with_tools = 0
    for record in records:
        columns |= record.keys()
        num_with_tools += has_tools(record, (shape or Shape()).columns)
        try:
            row = convert(record, shape or Shape(), len(rows))
            identities.check(record.get("id"), row)
            if needs_answer and extract_answer(row.response) is None:
                raise Unusable("no answer")
        except Unusable as error:
            skipped[error.reason] += 1
            continue
        rows.append(row)
    if identities.shared:
        log.warning("%s: %d rows reuse an id, kept", source, identities.shared)
    if num_with_tools:
        told = "%s: descriptions of tools, in %d rows, are left out of the prompts"
        log.warning(told, source, num_with_tools)
    if not rows:
        mapped = (shape or Shape()).columns.model_dump(exclude_none=True)
        absent = {name: said for name, said in mapped.items() if said not in columns}
        raise nothing_usable(source, columns, skipped, needs_answer, absent)
    return LoadedRows(rows, dict(sorted(skipped.items())))


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


def nothing_usable(
    source: str,
    columns: set[str],
    skipped: Counter[str],
    needs_answer: bool,
    absent: Mapping[str, str],
) -> InvalidInput:
    """Explain an empty data set: no record at all, wrong fields, or no answers.

    Args:
        source: Its name.
        columns: Those that its records have.
        skipped: Records by the reason that they are not used.
        needs_answer: Whether responses without a marked answer are among those.
        absent: Columns that the description maps to and no record has.
    """
    if not skipped:
        return InvalidInput("data", source, "the data set is empty")
    if set(skipped) == {"missing field"}:
        names = ", ".join(sorted(columns)) or "none"
        found = names.encode(errors="backslashreplace").decode()
        if absent:
            said = ", ".join(f"{name}: {column}" for name, column in absent.items())
            remedy = f"its description maps {said}, and no row has that; found: {found}"
            return InvalidInput("data", source, remedy)
        remedy = (
            "its rows need query and response, question and answer, prompt and "
            "completion, instruction and output, or messages or conversations whose "
            f"turns have role and content, or from and value; found: {found}"
        )
        return InvalidInput("data", source, remedy)
    reasons = ", ".join(f"{reason}: {count}" for reason, count in skipped.items())
    marks = "; for exact match a response must end in 'The answer is: X' or '#### X'"
    remedy = f"no row can be used ({reasons}){marks if needs_answer else ''}"
    return InvalidInput("data", source, remedy)
