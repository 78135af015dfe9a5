r"""Exact match of final answers (paper, Section 4.1, which prints no normalisation).

An answer is what follows the last ``The answer is:`` or ``####``. Two answers match if
their normal forms are equal. The normal form, in this order:

1. LaTeX wrappers go: ``$...$``, ``\boxed{...}``, ``\text{...}``, ``\left``,
   ``\right``, ``\!`` and the like; ``\frac{a}{b}`` becomes ``a/b``.
2. Currency signs, percent and degree signs, and a trailing period go.
3. A number, followed by nothing or by words that name its unit, becomes an exact
   fraction: ``1,234.50``, ``1234.5`` and ``2469/2`` are the same. Commas go only
   where they separate thousands.
4. Anything else is compared as text, without regard to case and spacing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from lazytrain.data.answers import extract_answer
from lazytrain.data.rows import Row
from lazytrain.evaluated import Prediction

__all__ = [
    "by_type",
    "distinct_answers",
    "exact_match",
    "extract_answer",
    "fraction_correct",
    "has_answer",
    "is_number",
    "judge",
    "majority_baseline",
    "normalise",
]

LONGEST_NUMBER: Final = 40  # characters of one that stands by itself, unit included
_FRACTION: Final = re.compile(
    r"\\[dt]?frac\s*(?:\{([^{}]+)\}|(\d))\s*(?:\{([^{}]+)\}|(\d))"
)
_WRAPPERS: Final = re.compile(r"\\(?:boxed|text|mathrm|textbf)\s*\{([^{}]*)\}")
_DECORATION: Final = re.compile(r"\\(?:left|right|[!,;: ])|\\?[$%]|[€£]|\^?\\circ|°")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER: Final = re.compile(
    r"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+(?=\d+/))?"
    r"(?P<top>\d+(?:\.\d*)?|\.\d+)(?:\s*/\s*(?P<bottom>\d+(?:\.\d*)?))?"
    r"(?P<unit>(?:\s*[a-z][a-z. ]*)?)",
    re.IGNORECASE,
)


def normalise(answer: str) -> str:
    """Return the normal form of an answer; numbers become exact fractions."""
    text = _WRAPPERS.sub(r"\1", answer)
    text = _FRACTION.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}", text)
    text = _DECORATION.sub("", text).strip().rstrip(".").strip()
    number = _number(text)
    if number is not None:
        return str(number)
    return " ".join(text.casefold().split())


def _number(text: str) -> Fraction | None:
    """Read a number with an optional unit of words, or None if it is something else."""
    match = _NUMBER.fullmatch(_THOUSANDS.sub("", text))
    # "2x" is an expression; a unit stands apart from its number or has two letters.
    if match is None or re.fullmatch(r"[A-Za-z]", match["unit"]):
        return None
    bottom = Fraction(match["bottom"] or 1)
    if bottom == 0:
        return None
    value = Fraction(match["top"]) / bottom + Fraction(match["whole"] or 0)
    return -value if match["sign"] == "-" else value


def is_number(text: str) -> bool:
    """Say whether a text is nothing but a number, maybe with a unit: ``$1,200``."""
    if len(text) > LONGEST_NUMBER or "\n" in text.strip():
        return False
    try:
        Fraction(normalise(text))
    except (ValueError, ZeroDivisionError):
        return False
    return True


def has_answer(response: str) -> bool:
    """Say whether a response can be judged: it marks its answer, or is a number."""
    return extract_answer(response) is not None or is_number(response)


def exact_match(answer: str | None, expected: str | None) -> bool:
    """Whether two answers have equal normal forms; a missing one never matches."""
    if answer is None or expected is None:
        return False
    return normalise(answer) == normalise(expected)


def judge(row: Row, text: str) -> Prediction:
    """Compare what a model wrote with a row's answer."""
    expected = extract_answer(row.response) or row.response.strip()
    answer = extract_answer(text)
    return Prediction(
        row_id=row.row_id,
        type=row.type,
        expected=expected,
        answer=answer,
        text=text,
        correct=exact_match(answer, expected),
    )


def by_type(predictions: Iterable[Prediction]) -> dict[str, tuple[int, int]]:
    """Count correct and all predictions of each row type."""
    correct: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for prediction in predictions:
        total[prediction.type] += 1
        correct[prediction.type] += prediction.correct
    return {kind: (correct[kind], total[kind]) for kind in sorted(total)}


def fraction_correct(predictions: Sequence[Prediction]) -> float:
    """Return the share of correct predictions, 0 to 1."""
    return sum(p.correct for p in predictions) / len(predictions)


def majority_baseline(train: Iterable[Row], test: Sequence[Row]) -> float:
    """Return the exact match of always giving the most frequent training answer."""
    counts = Counter(_answer(row) for row in train)
    if not counts:
        return 0.0
    most = min(counts, key=lambda answer: (-counts[answer], answer))
    return sum(_answer(row) == most for row in test) / len(test)


def distinct_answers(rows: Iterable[Row]) -> int:
    """Count different answers."""
    return len({_answer(row) for row in rows})


def _answer(row: Row) -> str:
    return normalise(extract_answer(row.response) or row.response)
