"""The final answer of a worked solution, as MetaMathQA and GSM8K mark it."""

from __future__ import annotations

import re
from typing import Final

# The last marker counts: a solution may quote the question's own "The answer is".
_MARKERS: Final = re.compile(r"the answer is\s*:|####", re.IGNORECASE)


def extract_answer(text: str) -> str | None:
    """Return what follows the last ``The answer is:`` or ``####`` on its line.

    Returns None without a marker, or with nothing after it.
    """
    markers = list(_MARKERS.finditer(text))
    if not markers:
        return None
    tail = text[markers[-1].end() :].strip()
    return tail.splitlines()[0].strip() if tail else None
