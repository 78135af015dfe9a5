"""Raw records in the shapes people have, turned into conversations.

Known shapes: ``query``/``response`` (MetaMathQA), ``question``/``answer`` (GSM8K),
``prompt``/``completion`` (TRL), alpaca (``instruction``/``input``/``output``, with
``system`` and ``history``), sharegpt (``conversations`` of ``from``/``value``) and
OpenAI's ``messages``. Any of them may describe tools in a column of its own. Column
and tag names can be mapped as in LLaMA-Factory's ``dataset_info.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from lazytrain.data.conversations import Tags, check_order, read_turns
from lazytrain.data.files import Record
from lazytrain.data.rows import ASKING, Message, Row
from lazytrain.data.tools import paired, read_tools
from lazytrain.data.values import Unusable, as_label, as_text
from lazytrain.records import Contract

__all__ = [
    "Columns",
    "Formatting",
    "Shape",
    "Tags",
    "Unusable",
    "convert",
    "detect",
]

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
    tools: str | None = Field(
        default=None, description="function schemas; empty: no column holds any"
    )


class Shape(Contract):
    """How to read the records of one data set."""

    formatting: Formatting = "auto"
    columns: Columns = Columns()
    tags: Tags = Tags()


def convert(record: Record, shape: Shape, row_id: int) -> Row:
    """Turn one record into a row.

    Raises:
        Unusable: If fields are missing, empty or malformed, or roles out of order.
    """
    formatting = shape.formatting
    if formatting == "auto":
        formatting = detect(record, shape.columns)
    column = "tools" if shape.columns.tools is None else shape.columns.tools
    tools = read_tools(record.get(column), column) if column else ""
    messages = paired(_READERS[formatting](record, shape), bool(tools))
    return _row(messages, record, row_id, tools)


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
                Message(role="user", content=as_text(record[asked])),
                Message(role="assistant", content=as_text(record[answered])),
            ]
    raise Unusable("missing field")


def _alpaca(record: Record, shape: Shape) -> list[Message]:
    columns = shape.columns
    prompt, response = columns.prompt or "instruction", columns.response or "output"
    if prompt not in record or response not in record:
        raise Unusable("missing field")
    asked = [as_text(record[prompt]), as_text(record.get(columns.query or "input"))]
    return [
        *_system(record, columns),
        *_history(record.get(columns.history or "history")),
        Message(role="user", content="\n".join(part for part in asked if part)),
        Message(role="assistant", content=as_text(record[response])),
    ]


def _system(record: Record, columns: Columns) -> list[Message]:
    text = as_text(record.get(columns.system or "system"))
    return [Message(role="system", content=text)] if text else []


def _history(turns: Any) -> list[Message]:
    """Read alpaca's history, a list of pairs (question, answer)."""
    messages: list[Message] = []
    if not isinstance(turns or [], list | tuple):
        raise Unusable("wrong history")
    for turn in turns or []:
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise Unusable("wrong history")
        messages.append(Message(role="user", content=as_text(turn[0])))
        messages.append(Message(role="assistant", content=as_text(turn[1])))
    return messages


def _sharegpt(record: Record, shape: Shape) -> list[Message]:
    return _conversation(record, shape, "conversations")


def _openai(record: Record, shape: Shape) -> list[Message]:
    return _conversation(record, shape, "messages")


def _conversation(record: Record, shape: Shape, usual: str) -> list[Message]:
    """Read a list of turns; a system message of its own column comes before them."""
    column = shape.columns.messages or usual
    if column not in record:
        raise Unusable("missing field")
    turns = read_turns(record[column], shape.tags)
    if turns and turns[0].role == "system":
        return turns
    return [*_system(record, shape.columns), *turns]


_READERS: Final = {
    "query": _pair,
    "alpaca": _alpaca,
    "sharegpt": _sharegpt,
    "openai": _openai,
}


def _row(messages: Sequence[Message], record: Record, row_id: int, tools: str) -> Row:
    """Check the order of the turns and make the row of a conversation.

    After a system message, user (or tool) and assistant turns alternate.
    """
    if all(message.role == "system" for message in messages):
        raise Unusable("empty messages")
    turns = messages[messages[0].role == "system" :]
    check_order(turns)
    question, answer = messages[-2:]
    # One common last turn ("go on") does not make two conversations the same.
    asked = "\n".join(turn.content for turn in turns if turn.role in ASKING)
    return Row(
        row_id=row_id,
        query=question.content,
        query_role=question.role,
        query_name=question.name,
        query_call_id=question.call_id,
        response=answer.content,
        calls=answer.calls,
        tools=tools,
        original_question=as_label(record.get("original_question")) or asked,
        type=as_label(record.get("type")) or "question",
        history=tuple(messages[:-2]),
    )
