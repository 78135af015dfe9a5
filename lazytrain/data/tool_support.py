"""Whether a chat template renders a row's tools, calls and answers.

Templates that know no tools mostly leave them out without a word, and some render one
call of several, or no text beside a call. A row is therefore rendered once with marks
in the place of what it says of tools: whatever mark is missing would not be trained on,
and a mark on the wrong side of the loss would be trained on wrongly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from lazytrain.data.rows import Message, Row
from lazytrain.data.spans import assistant_spans, is_inside
from lazytrain.data.templates import REFUSED, drawing, render
from lazytrain.errors import InvalidInput

TOOLS: Final = "tools"
CALLS: Final = "calls of tools"
TEXTS: Final = "text beside a call"
ANSWERS: Final = "what tools answer"
REMEDY: Final = (
    "no named template renders tools: leave template empty and give a tokenizer whose "
    "own one does, or take such rows out; columns.tools: '' in dataset_info.json "
    "trains rows that describe tools, and call none, without the descriptions"
)


def check_support(row: Row, tokenizer: Any) -> None:
    """Refuse a row with tools whose template would not render them.

    Raises:
        InvalidInput: If so.
    """
    reason = unsupported(row, tokenizer)
    if reason is not None:
        raise InvalidInput("chat template", reason, f"row {row.row_id}: {REMEDY}")


def supported(rows: Sequence[Row], tokenizer: Any) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that the template renders whole, and the others by reason."""
    kept: list[Row] = []
    lost: Counter[str] = Counter()
    for row in rows:
        reason = unsupported(row, tokenizer)
        if reason is None:
            kept.append(row)
        else:
            lost[reason] += 1
    return kept, dict(lost)


def unsupported(row: Row, tokenizer: Any) -> str | None:
    """Return why a template cannot serve a row with tools; None if it can."""
    if not row.uses_tools:
        return None
    marked = _Marked()
    tools = marked.schemas(row.tools)
    messages = [marked.turn(message) for message in row.messages]
    try:
        render(tokenizer, row.messages, False, row.tools)
        draw = drawing(tokenizer, tools)
        text = draw(messages, False).rstrip()
        spans = assistant_spans(draw, messages, text)
    except InvalidInput as error:
        return f"chat template refuses it: {error.__cause__}"
    except REFUSED as error:
        return f"chat template refuses it: {error}"
    for kind, marks in marked.marks.items():
        if not all(mark in text for mark in marks):
            return f"chat template leaves out {kind}"
    for kind, marks in marked.marks.items():
        if kind != TOOLS and not _on_its_side(text, spans, marks, kind != ANSWERS):
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
    """A row's turns with marks in the place of their words, and the marks by kind."""

    marks: dict[str, list[str]] = field(
        default_factory=lambda: {TOOLS: [], CALLS: [], TEXTS: [], ANSWERS: []}
    )

    def __post_init__(self) -> None:
        self._numbers = count()

    def new(self, kind: str) -> str:
        """Return a mark that no other one is part of."""
        mark = f"lz{next(self._numbers)}mark"
        self.marks[kind].append(mark)
        return mark

    def schemas(self, tools: str) -> str:
        """Return schemas whose functions have other names."""
        schemas = json.loads(tools) if tools else []
        for schema in schemas:
            schema["function"]["name"] = self.new(TOOLS)
        return json.dumps(schemas) if schemas else ""

    def turn(self, message: Message) -> Message:
        """Return a turn whose calls and answers say something else."""
        if message.role == "tool":
            return message.model_copy(update={"content": self.new(ANSWERS)})
        if not message.calls:
            return message
        calls = tuple(
            call.model_copy(
                update={
                    "name": self.new(CALLS),
                    "arguments": json.dumps({"value": self.new(CALLS)}),
                }
            )
            for call in message.calls
        )
        content = self.new(TEXTS) if message.content else ""
        return message.model_copy(update={"calls": calls, "content": content})
