"""Whether a chat template renders a row's tools, calls and answers.

Templates that know no tools mostly leave them out without a word, and some render one
call of several, or no text beside a call. A conversation of the same form as a row's,
with a mark for each thing it says, is therefore rendered first: whatever mark is
missing would not be trained on, and a mark on the wrong side of the loss would be
trained on wrongly. Forms are few, so each is tried once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, Final

from lazytrain.data.rows import Call, Message, Role, Row
from lazytrain.data.spans import assistant_spans, is_inside
from lazytrain.data.templates import REFUSED, drawing
from lazytrain.errors import InvalidInput

TOOLS: Final = "tools"
CALLS: Final = "calls of tools"
TEXTS: Final = "text beside a call"
ANSWERS: Final = "what tools answer"
REMEDY: Final = (
    "no named template renders descriptions or calls of tools: leave template empty "
    "and give a tokenizer whose own one does, or take such rows out; "
    "columns.tools: '' in dataset_info.json trains rows that describe tools, and call "
    "none, without the descriptions"
)


@dataclass(frozen=True)
class Turn:
    """The form of a turn: who speaks, whether in words, and with how many calls."""

    role: Role
    has_text: bool
    num_calls: int
    is_named: bool


Form = tuple[Turn, ...]


def check_support(row: Row, tokenizer: Any) -> None:
    """Refuse a row with tools whose template would not render them.

    Raises:
        InvalidInput: If so.
    """
    reason = _loss_of(row, tokenizer)
    if reason is not None:
        raise InvalidInput("chat template", reason, f"row {row.row_id}: {REMEDY}")


def supported(rows: Sequence[Row], tokenizer: Any) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that the template renders whole, and the others by reason."""
    kept: list[Row] = []
    lost: Counter[str] = Counter()
    for row in rows:
        reason = _loss_of(row, tokenizer) or _refusal(row, tokenizer)
        if reason is None:
            kept.append(row)
        else:
            lost[reason] += 1
    return kept, dict(lost)


def _refusal(row: Row, tokenizer: Any) -> str | None:
    """Return what a template says against a row with tools itself."""
    if not row.uses_tools:
        return None
    draw = drawing(tokenizer, row.tools)
    try:
        text = draw(row.messages, False).rstrip()
        assistant_spans(draw, row.messages, text)
    except REFUSED as error:
        return f"chat template refuses it: {error}"
    return None


def _loss_of(row: Row, tokenizer: Any) -> str | None:
    """Return what a template does wrong with tools in rows of a row's form."""
    if not row.uses_tools:
        return None
    form = tuple(
        Turn(turn.role, bool(turn.content), len(turn.calls), bool(turn.call_id))
        for turn in row.messages
    )
    return _tried(tokenizer, repr(tokenizer.chat_template), bool(row.tools), form)


@lru_cache(maxsize=1024)
def _tried(tokenizer: Any, _template: str, has_tools: bool, form: Form) -> str | None:
    """Render a conversation of marks, and say what is wrong with it."""
    marked = _Marked()
    messages = [marked.turn(turn) for turn in form]
    draw = drawing(tokenizer, marked.schemas() if has_tools else "")
    try:
        text = draw(messages, False).rstrip()
        spans = assistant_spans(draw, messages, text)
    except REFUSED as error:
        return f"chat template refuses it: {error}"
    for kind, marks in marked.marks.items():
        if not all(mark in text for mark in marks):
            return f"chat template leaves out {kind}"
    for kind, marks in marked.marks.items():
        is_said = kind in (CALLS, TEXTS)
        if kind != TOOLS and not _on_its_side(text, spans, marks, is_said):
            return "chat template does not tell the assistant's turns apart"
    return None


def _on_its_side(
    text: str, spans: Sequence[tuple[int, int]], marks: Sequence[str], is_said: bool
) -> bool:
    """Say whether marks are all within the assistant's turns, or all outside."""
    starts = [(text.index(mark), len(mark)) for mark in marks]
    return all(is_inside((n, n + size), spans) == is_said for n, size in starts)


@dataclass
class _Marked:
    """Turns of marks, and the marks by kind."""

    marks: dict[str, list[str]] = field(
        default_factory=lambda: {TOOLS: [], CALLS: [], TEXTS: [], ANSWERS: []}
    )
    waiting: list[str] = field(default_factory=list)  # ids of calls without an answer

    def __post_init__(self) -> None:
        self._numbers = count()
        self._ids = (f"call{n:05d}" for n in count())

    def new(self, kind: str) -> str:
        """Return a mark that no other one is part of."""
        mark = f"lz{next(self._numbers)}mark"
        self.marks[kind].append(mark)
        return mark

    def schemas(self) -> str:
        """Return the schema of a function as JSON text."""
        parameters = {"type": "object", "properties": {}}
        function = {
            "name": self.new(TOOLS),
            "description": "",
            "parameters": parameters,
        }
        return json.dumps([{"type": "function", "function": function}])

    def turn(self, turn: Turn) -> Message:
        """Return a turn of a form."""
        if turn.role == "tool":
            return self._answer(turn)
        calls = tuple(self._call() for _ in range(turn.num_calls))
        self.waiting = [call.call_id for call in calls]
        text = self.new(TEXTS) if calls and turn.has_text else "words" * turn.has_text
        return Message(role=turn.role, content=text, calls=calls)

    def _call(self) -> Call:
        arguments = json.dumps({"value": self.new(CALLS)})
        return Call(name=self.new(CALLS), arguments=arguments, call_id=next(self._ids))

    def _answer(self, turn: Turn) -> Message:
        text = self.new(ANSWERS)
        if not turn.is_named:
            return Message(role="tool", content=text)
        call_id = self.waiting.pop(0) if self.waiting else next(self._ids)
        return Message(role="tool", content=text, name="tool", call_id=call_id)
