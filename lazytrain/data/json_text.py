"""JSON of any origin: what cannot be read is named with its line.

NaN, numbers beyond a float and integers of thousands of digits are read as what they
are, no finite number: whether the row that holds one is usable is decided later.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


class BadJson(ValueError):
    """A text is not JSON, or nested too deeply to be read.

    Attributes:
        line: Where, counted from 1.
        reason: Why.
        is_extra: Whether it is one JSON value followed by more text.
    """

    def __init__(self, line: int, reason: str, *, is_extra: bool = False) -> None:
        super().__init__(f"line {line} {reason}")
        self.line = line
        self.reason = reason
        self.is_extra = is_extra


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        BadJson: If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg}"
        is_extra = error.msg == "Extra data"
        raise BadJson(error.lineno, reason, is_extra=is_extra) from error
    except RecursionError:
        # Its traceback is a thousand frames that say no more than this.
        raise BadJson(_deepest_line(text), "is nested too deeply") from None


def _integer(digits: str) -> int | float:
    """Return an integer, or an infinity if it has more digits than Python reads."""
    try:
        return int(digits)
    except ValueError:
        return -math.inf if digits.startswith("-") else math.inf


def _deepest_line(text: str) -> int:
    """Return the line at which the most brackets are open."""
    depth, most, place = 0, 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > most:
                most, place = depth, token.start()
        elif token[0] in "]}":
            depth -= 1
    return text.count("\n", 0, place) + 1
