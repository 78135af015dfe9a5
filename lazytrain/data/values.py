"""Single values of raw records, read as text, or refused with a reason.

A record that cannot become a row is counted by its reason; the first of each reason
that has a detail is named with its place (:mod:`lazytrain.data.metamath`).
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

MOST_NESTED: Final = 50  # templates and transformers walk values by recursion


class Unusable(Exception):
    """A record cannot become a row.

    Attributes:
        reason: Why, in words that are counted.
        detail: Field, value and remedy, for the first such record; may be empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def as_text(value: Any) -> str:
    """Return a text without outer spaces; OpenAI's list of text parts is joined.

    Raises:
        Unusable: If it is neither text nor a finite number, or no Unicode.
    """
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        if len(parts) != len(value) or not all(isinstance(p, str) for p in parts):
            raise Unusable("content is not text")
        value = "".join(str(part) for part in parts)
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    if not isinstance(value, str):
        raise Unusable("content is not text")
    return _encodable(value.strip())


def as_label(value: Any) -> str:
    """Return an optional column's text; anything else counts as absent.

    Raises:
        Unusable: If it is no Unicode.
    """
    return _encodable(value.strip()) if isinstance(value, str) else ""


def as_json(value: Any) -> str:
    """Return a value as JSON text on one line, its keys in their order.

    Raises:
        Unusable: If it holds what JSON lacks, or is nested too deeply.
    """
    _check_depth(value, MOST_NESTED)
    try:
        return _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError as error:  # also more digits than Python writes
        raise Unusable("number is not finite") from error
    except TypeError as error:
        raise Unusable("value is not JSON", f"{error}; give text or numbers") from error


def _check_depth(value: Any, levels: int) -> None:
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise Unusable(
            "nested too deeply", f"more than {MOST_NESTED} levels; make it flatter"
        )
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, levels - 1)


def _number(value: float) -> str:
    """Return an answer given as a number, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Unusable("number is not finite")
    try:
        return str(value)
    except ValueError as error:  # more digits than Python writes
        raise Unusable("number is not finite") from error


def _encodable(text: str) -> str:
    """Return a text as it is, unless it holds half a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unusable("text is not Unicode") from error
    return text
