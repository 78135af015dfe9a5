"""A seeded generator of MetaMathQA-shaped word problems whose answers are computed.

Each original question yields four rows, in the kinds of MetaMathQA: ``AnsAug`` (the
question itself), ``Rephrased`` (the same in other words), ``FOBAR`` and ``SV`` (a
number of the question is the unknown, its answer is given). Texts are short and sums
need no carry and are worked place by place, so that a model of a few million parameters
learns them in minutes on a CPU; the three-digit answers still have to be computed, for
there are hundreds of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from lazytrain.data.rows import Row

KINDS: Final = ("AnsAug", "Rephrased", "FOBAR", "SV")

_NAMES: Final = ("Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
_THINGS: Final = ("pens", "cups", "eggs", "figs", "keys", "nuts", "pins", "maps")


@dataclass(frozen=True)
class Question:
    """One addition problem: ``first + second`` things of a person."""

    name: str
    things: str
    first: int
    second: int

    @property
    def total(self) -> int:
        """The answer of the original question."""
        return self.first + self.second

    @property
    def original(self) -> str:
        """The original question."""
        return (
            f"{self.name} has {self.first} {self.things}, gets {self.second}. How many?"
        )


def generate(num_questions: int, seed: int) -> list[Row]:
    """Return four rows for each of ``num_questions`` distinct questions.

    The same arguments give the same rows on any platform and library version.
    """
    rows: list[Row] = []
    seen: set[str] = set()
    draw = 0
    while len(rows) < num_questions * len(KINDS):
        question = _question(_Draws(f"{seed}:{draw}"))
        draw += 1
        if question.original in seen:
            continue
        seen.add(question.original)
        rows += [_row(question, kind, len(rows) + n) for n, kind in enumerate(KINDS)]
    return rows


class _Draws:
    """Whole numbers from a hash: stable where library generators may change."""

    def __init__(self, key: str) -> None:
        self._bits = int.from_bytes(hashlib.sha256(key.encode()).digest(), "big")

    def below(self, bound: int) -> int:
        self._bits, value = divmod(self._bits, bound)
        return value


def _question(draws: _Draws) -> Question:
    """Draw two numbers of three digits whose sum needs no carry."""
    first = second = 0
    for place in (100, 10, 1):
        low = 1 if place == 100 else 0
        digit = low + draws.below(9 - low)
        first += place * digit
        second += place * (low + draws.below(10 - digit - low))
    name = _NAMES[draws.below(len(_NAMES))]
    return Question(name, _THINGS[draws.below(len(_THINGS))], first, second)


def _row(question: Question, kind: str, row_id: int) -> Row:
    query, response = _PHRASES[kind](question)
    return Row(
        row_id=row_id,
        query=query,
        response=response,
        original_question=question.original,
        type=kind,
    )


def _sum(q: Question) -> str:
    return _worked(q.first, "+", q.second, q.total)


def _difference(total: int, known: int) -> str:
    return _worked(total, "-", known, total - known)


def _worked(left: int, sign: str, right: int, result: int) -> str:
    """Work a sum without carry place by place, then state the answer."""
    digits = zip(f"{left:03d}", f"{right:03d}", f"{result:03d}", strict=True)
    places = " ".join(f"{one}{sign}{other}={both}" for one, other, both in digits)
    return f"{places}. The answer is: {result}"


def _ans_aug(q: Question) -> tuple[str, str]:
    return q.original, _sum(q)


def _rephrased(q: Question) -> tuple[str, str]:
    query = f"To {q.first} {q.things} {q.name} adds {q.second}. Count them."
    return query, _sum(q)


def _fobar(q: Question) -> tuple[str, str]:
    query = f"{q.name} has x {q.things}, gets {q.second}. Total {q.total}. x?"
    return query, _difference(q.total, q.second)


def _sv(q: Question) -> tuple[str, str]:
    query = f"{q.name} has {q.first} {q.things}, gets x, has {q.total}. x?"
    return query, _difference(q.total, q.first)


_PHRASES: Final = {
    "AnsAug": _ans_aug,
    "Rephrased": _rephrased,
    "FOBAR": _fobar,
    "SV": _sv,
}
