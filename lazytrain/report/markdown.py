"""Generated tables inside written documents, each between two markers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lazytrain.errors import InvalidInput
from lazytrain.records import write_text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markers(name: str) -> tuple[str, str]:
    """Return the comments between which a generated table stands."""
    return f"<!-- begin {name}: generated -->", f"<!-- end {name} -->"


def with_section(text: str, name: str, body: str) -> str:
    """Return a document with a generated section put between its markers.

    Raises:
        InvalidInput: If a marker is missing.
    """
    begin, end = markers(name)
    if begin not in text or end not in text:
        raise InvalidInput("document", name, f"the document lacks the line {begin}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n\n{body}\n\n{end}{rest.split(end, 1)[1]}"


def renew(document: Path, name: str, body: str) -> None:
    """Put a generated section into a document, atomically.

    Raises:
        InvalidInput: If the document or a marker is missing.
    """
    if not document.is_file():
        raise InvalidInput("document", str(document), "the file does not exist")
    text = document.read_text(encoding="utf-8")
    write_text(with_section(text, name, body), document)
