"""Descriptions of tools, their calls and answers, as people's data holds them.

Descriptions are a list of function schemas, flat (LLaMA-Factory) or wrapped as
``{"type": "function", "function": ...}`` (OpenAI), or the JSON text of one. Calls are
OpenAI's ``tool_calls``, the older ``function_call``, or the text of a sharegpt turn
``function_call``: one call or a list of them. Arguments are an object or its JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from lazytrain.data.json_text import BadJson, parse_json
from lazytrain.data.rows import Call, Message
from lazytrain.data.values import Unusable, as_json, as_label

SHOWN: Final = 60  # characters of a wrong value
_SCHEMAS: Final = (
    "give a list of function schemas, each with a name, or its JSON text; "
    "columns.tools maps another column, and '' none"
)
_CALL: Final = 'give {"name": ..., "arguments": {...}}, or a list of such calls'


def read_tools(value: Any, column: str = "tools") -> str:
    """Return the JSON text of wrapped function schemas; empty if there are none.

    Args:
        value: What the record holds.
        column: Its name.

    Raises:
        Unusable: If it is no JSON, or holds anything but named functions.
    """
    value = _parsed(value, column, "tools is not JSON", _SCHEMAS)
    if not value:
        return ""
    listed = [value] if isinstance(value, dict) else value
    if not isinstance(listed, list):
        raise _wrong("tools holds no function", column, value, _SCHEMAS)
    return _written([_schema(item, column) for item in listed], column)


def _schema(item: Any, column: str) -> dict[str, Any]:
    """Return one function schema in OpenAI's wrapping."""
    item = _parsed(item, column, "tools is not JSON", _SCHEMAS)
    if not isinstance(item, dict):
        raise _wrong("tools holds no function", column, item, _SCHEMAS)
    function = item.get("function", item)
    is_function = item.get("type") in (None, "function") and isinstance(function, dict)
    if not is_function or not as_label(function.get("name")):
        raise _wrong("tools holds no function", column, item, _SCHEMAS)
    bare = function is item
    said = {k: v for k, v in function.items() if v is not None}
    if bare:
        said.pop("type", None)
    more = {} if bare else {k: v for k, v in item.items() if v is not None}
    return {"type": "function"} | more | {"function": said}


def turn_calls(turn: dict[str, Any]) -> tuple[Call, ...]:
    """Return the calls beside a turn's text, in OpenAI's newer or older form.

    Raises:
        Unusable: If they are malformed.
    """
    field = "tool_calls" if turn.get("tool_calls") else "function_call"
    return read_calls(turn[field], field) if turn.get(field) else ()


def read_calls(value: Any, field: str) -> tuple[Call, ...]:
    """Return one call or several.

    Args:
        value: Objects, or the JSON text of one or of a list.
        field: What holds them.

    Raises:
        Unusable: If it is no JSON, or a call lacks its name, or its arguments are no
            object.
    """
    value = _parsed(value, field, "a call is not JSON", _CALL)
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise _wrong("a call has no name", field, value, _CALL)
    return tuple(_call(item, field) for item in listed)


def _call(item: Any, field: str) -> Call:
    item = _parsed(item, field, "a call is not JSON", _CALL)
    function = (item.get("function") or item) if isinstance(item, dict) else None
    name = as_label(function.get("name")) if isinstance(function, dict) else ""
    if not isinstance(function, dict) or not name:
        raise _wrong("a call has no name", field, item, _CALL)
    reason, remedy = "arguments are no JSON object", "give an object or its JSON text"
    field = f"{field}.arguments"
    given = _parsed(function.get("arguments"), field, reason, remedy)
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise _wrong(reason, field, given, remedy)
    call_id = as_label(item.get("id"))
    return Call(name=name, arguments=_written(given, field), call_id=call_id)


def paired(messages: Sequence[Message], has_tools: bool) -> list[Message]:
    """Give each call an id, and each tool's answer the id and name of its call.

    Ids that the data gives are kept. Without descriptions or calls nothing is named: a
    tool's answer is then a turn like any other.

    Raises:
        Unusable: If an answer names a call that was not made.
    """
    if not has_tools and not any(message.calls for message in messages):
        return [_unnamed(message) for message in messages]
    fresh = _fresh_ids(messages)
    known: set[str] = set()
    waiting: list[Call] = []
    linked = []
    for message in messages:
        if message.role == "tool" and waiting:
            call = _answered(message, waiting, known)
            waiting.remove(call)
            names = {"name": message.name or call.name, "call_id": call.call_id}
            message = message.model_copy(update=names)
        elif message.role != "tool":
            known = {call.call_id for call in message.calls}
            waiting = [_named(call, fresh) for call in message.calls]
            message = message.model_copy(update={"calls": tuple(waiting)})
        linked.append(message)
    return linked


def _unnamed(message: Message) -> Message:
    if not (message.name or message.call_id):  # most rows: a copy takes its time
        return message
    return message.model_copy(update={"name": "", "call_id": ""})


def _fresh_ids(messages: Sequence[Message]) -> Iterator[str]:
    """Yield ids that the data does not use, of nine letters and digits.

    Templates that look at ids want that many.
    """
    given = {call.call_id for message in messages for call in message.calls}
    return (name for n in count() if (name := f"call{n:05d}") not in given)


def _named(call: Call, fresh: Iterator[str]) -> Call:
    if call.call_id:
        return call
    return call.model_copy(update={"call_id": next(fresh)})


def _answered(answer: Message, waiting: Sequence[Call], known: set[str]) -> Call:
    """Return the call that is answered: by id, else by name, else the next one."""
    for call in waiting:
        if answer.call_id and call.call_id == answer.call_id:
            return call
    if answer.call_id and known != {""}:
        remedy = "give the id of a call of the turn before that is not answered yet"
        raise _wrong("an answer names no call", "tool_call_id", answer.call_id, remedy)
    named = (call for call in waiting if call.name == answer.name)
    return next(named, waiting[0])


def _parsed(value: Any, field: str, reason: str, remedy: str) -> Any:
    """Return a value, read from its JSON text if it is a text; a blank one is None."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except BadJson as error:
        raise _wrong(reason, field, value, f"{error.reason}; {remedy}") from error


def _written(value: Any, field: str) -> str:
    """Return a value as JSON text; what JSON lacks is told with its field."""
    try:
        return as_json(value)
    except Unusable as error:
        remedy = error.detail or "give finite numbers and whole characters"
        raise _wrong(error.reason, field, value, remedy) from error


def _wrong(reason: str, field: str, value: Any, remedy: str) -> Unusable:
    try:
        shown = ascii(value)
    except RecursionError:
        shown = f"{type(value).__name__} of more levels than can be shown"
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]} ..."
    return Unusable(reason, f"{field} = {shown}: {remedy}")
