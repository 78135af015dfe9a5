"""Raw records in the shapes people have, turned into conversations.

Known shapes: ``query``/``response`` (MetaMathQA), ``question``/``answer`` (GSM8K),
``prompt``/``completion`` (TRL), alpaca (``instruction``/``input``/``output``, with
``system`` and ``history``), sharegpt (``conversations`` of ``from``/``value``) and
OpenAI's ``messages``. Column and tag names can be mapped as in LLaMA-Factory's
``dataset_info.json``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from lazytrain.data.files import Record
from lazytrain.data.rows import ASKING, Message, Role, Row
from lazytrain.records import Contract

Formatting = Literal["auto", "alpaca", "sharegpt", "openai", "query"]
PAIRS: Final = (
    ("query", "response"),
    ("question", "answer"),
    *(
        (asked, answered)
        for asked in ("query", "question", "prompt")
        for answered in ("answer", "response", "completion")
    ),
)


class Columns(Contract):
    """Names of the columns, where they are not the usual ones."""

    prompt: str | None = None
    query: str | None = None
    response: str | None = None
    system: str | None = None
    history: str | None = None
    messages: str | None = None
    tools: str | None = Field(default=None, description="read over, not rendered")


class Tags(Contract):
    """Names inside a conversation's turns, where they are not the usual ones."""

    role_tag: str | None = None
    content_tag: str | None = None
    user_tag: str | None = None
    assistant_tag: str | None = None
    observation_tag: str | None = None
    function_tag: str | None = None
    system_tag: str | None = None


class Shape(Contract):
    """How to read the records of one data set."""

    formatting: Formatting = "auto"
    columns: Columns = Columns()
    tags: Tags = Tags()


class Unusable(Exception):
    """A record cannot become a row; the argument is the reason that is counted."""

    @property
    def reason(self) -> str:
        """Why."""
        return str(self.args[0])


def convert(record: Record, shape: Shape, row_id: int) -> Row:
    """Turn one record into a row.

    Raises:
        Unusable: If fields are missing or empty, or roles are out of order.
    """
    formatting = shape.formatting
    if formatting == "auto":
        formatting = detect(record, shape.columns)
    messages = _READERS[formatting](record, shape)
    return _row(messages, record, row_id)


def detect(record: Record, columns: Columns) -> Formatting:
    """Tell a record's shape by its columns.

    Raises:
        Unusable: If they are those of no known shape.
    """
    if (columns.messages or "conversations") in record:
        return "sharegpt"
    if "messages" in record:
        return "openai"
    if any(asked in record and answered in record for asked, answered in PAIRS):
        return "query"
    if (columns.prompt or "instruction") in record:
        return "alpaca"
    raise Unusable("missing field")


def _pair(record: Record, shape: Shape) -> list[Message]:
    columns = shape.columns
    mapped = (columns.query or columns.prompt or "", columns.response or "")
    for asked, answered in (mapped, *PAIRS):
        if asked in record and answered in record:
            return [
                *_system(record, columns),
                Message(role="user", content=_text(record[asked])),
                Message(role="assistant", content=_text(record[answered])),
            ]
    raise Unusable("missing field")


def _alpaca(record: Record, shape: Shape) -> list[Message]:
    columns = shape.columns
    prompt, response = columns.prompt or "instruction", columns.response or "output"
    if prompt not in record or response not in record:
        raise Unusable("missing field")
    asked = [_text(record[prompt]), _text(record.get(columns.query or "input"))]
    return [
        *_system(record, columns),
        *_history(record.get(columns.history or "history")),
        Message(role="user", content="\n".join(part for part in asked if part)),
        Message(role="assistant", content=_text(record[response])),
    ]


def _system(record: Record, columns: Columns) -> list[Message]:
    text = _text(record.get(columns.system or "system"))
    return [Message(role="system", content=text)] if text else []


def _history(turns: Any) -> list[Message]:
    """Read alpaca's history, a list of pairs (question, answer)."""
    messages: list[Message] = []
    if not isinstance(turns or [], list | tuple):
        raise Unusable("wrong history")
    for turn in turns or []:
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise Unusable("wrong history")
        messages.append(Message(role="user", content=_text(turn[0])))
        messages.append(Message(role="assistant", content=_text(turn[1])))
    return messages


def _sharegpt(record: Record, shape: Shape) -> list[Message]:
    return _conversation(record, shape, "conversations")


def _openai(record: Record, shape: Shape) -> list[Message]:
    return _conversation(record, shape, "messages")


def _conversation(record: Record, shape: Shape, usual: str) -> list[Message]:
    """Read a list of turns; a system message of its own column comes before them."""
    turns = _turns(record, shape.columns.messages or usual, shape.tags)
    if turns and turns[0].role == "system":
        return turns
    return [*_system(record, shape.columns), *turns]


def _roles(tags: Tags) -> dict[str, Role]:
    """Return what names a role: the tag that is mapped, or the usual names."""
    named: list[tuple[str | None, tuple[str, ...], Role]] = [
        (tags.user_tag, ("human", "user"), "user"),
        (tags.assistant_tag, ("gpt", "assistant"), "assistant"),
        (tags.observation_tag, ("observation", "tool"), "tool"),
        (tags.function_tag, ("function_call",), "assistant"),
        (tags.system_tag, ("system", "developer"), "system"),
    ]
    usual = {n: role for tag, names, role in named if tag is None for n in names}
    return usual | {tag: role for tag, _, role in named if tag is not None}


def _keys(turn: dict[str, Any], tags: Tags) -> tuple[str, str]:
    """Return which keys of a turn hold role and content."""
    usual = ("from", "value") if "from" in turn else ("role", "content")
    return (tags.role_tag or usual[0], tags.content_tag or usual[1])


def _turns(record: Record, column: str, tags: Tags) -> list[Message]:
    if column not in record:
        raise Unusable("missing field")
    turns = record[column]
    if not isinstance(turns, list) or not turns:
        raise Unusable("empty messages")
    roles = _roles(tags)
    return [_message(turn, tags, roles) for turn in turns]


def _message(turn: Any, tags: Tags, roles: dict[str, Role]) -> Message:
    """Read one turn.

    Raises:
        Unusable: If it lacks role or content, or holds what would be lost: calls of
            tools beside the text, or OpenAI's wish that no loss is taken over it.
    """
    if not isinstance(turn, dict):
        raise Unusable("missing field")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise Unusable("tool calls are not rendered")
    if turn.get("weight") == 0:
        raise Unusable("weight 0 is not kept")
    keys = _keys(turn, tags)
    if not set(keys) <= turn.keys():
        raise Unusable("missing field")
    said = turn[keys[0]]
    role = roles.get(said) if isinstance(said, str) else None
    if role is None:
        raise Unusable("wrong roles")
    return Message(role=role, content=_text(turn[keys[1]]))


def has_tools(record: Record, columns: Columns) -> bool:
    """Say whether a record describes tools, which no template here is given."""
    return bool(record.get(columns.tools or "tools"))


_READERS: Final = {
    "query": _pair,
    "alpaca": _alpaca,
    "sharegpt": _sharegpt,
    "openai": _openai,
}


def _text(value: Any) -> str:
    """Return a text without outer spaces; OpenAI's list of text parts is joined."""
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


def _label(value: Any) -> str:
    """Return an optional column's text; anything else counts as absent."""
    return _encodable(value.strip()) if isinstance(value, str) else ""


def _row(messages: Sequence[Message], record: Record, row_id: int) -> Row:
    """Check the order of the turns and make the row of a conversation.

    After a system message, user (or tool) and assistant turns alternate.
    """
    turns = [message for message in messages if message.role != "system"]
    if not turns:
        raise Unusable("empty messages")
    first_is_system = messages[0].role == "system"
    if len(turns) != len(messages) - first_is_system:
        raise Unusable("wrong roles")
    for place, turn in enumerate(turns):
        if (turn.role in ASKING) == bool(place % 2):
            raise Unusable("wrong roles")
    if turns[-1].role != "assistant" or not turns[-1].content:
        raise Unusable("no answer")
    if any(not turn.content for turn in turns):
        raise Unusable("empty question" if len(turns) == 2 else "empty messages")
    question = messages[-2]
    # One common last turn ("go on") does not make two conversations the same.
    asked = "\n".join(turn.content for turn in turns if turn.role in ASKING)
    return Row(
        row_id=row_id,
        query=question.content,
        query_role=question.role,
        response=turns[-1].content,
        original_question=_label(record.get("original_question")) or asked,
        type=_label(record.get("type")) or "question",
        history=tuple(messages[:-2]),
    )
