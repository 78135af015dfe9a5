"""A record's turns: sharegpt's ``from``/``value`` and OpenAI's ``role``/``content``.

Names of keys and roles can be mapped as in LLaMA-Factory's ``dataset_info.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from lazytrain.data.rows import ASKING, Message, Role
from lazytrain.data.tools import read_calls, turn_calls
from lazytrain.data.values import Unusable, as_label, as_text
from lazytrain.records import Contract


class Tags(Contract):
    """Names inside a conversation's turns, where they are not the usual ones."""

    role_tag: str | None = None
    content_tag: str | None = None
    user_tag: str | None = None
    assistant_tag: str | None = None
    observation_tag: str | None = None
    function_tag: str | None = None
    system_tag: str | None = None


def read_turns(turns: Any, tags: Tags) -> list[Message]:
    """Return the turns of a conversation, their order unchecked.

    Raises:
        Unusable: If there are none, or one cannot be read.
    """
    if not isinstance(turns, list) or not turns:
        raise Unusable("empty messages")
    roles = _roles(tags)
    return [_message(turn, tags, roles) for turn in turns]


def check_order(turns: Sequence[Message]) -> None:
    """Check that asking and answering turns alternate, from an asking one on.

    Several calls of one turn may have an answer each, one after the other.

    Args:
        turns: Without a system message.

    Raises:
        Unusable: If they do not, or a turn says nothing.
    """
    waiting = 0
    before: Role = "assistant"
    for turn in turns:
        is_next_answer = turn.role == before == "tool" and waiting > 0
        alternates = (turn.role in ASKING) != (before in ASKING)
        if turn.role == "system" or not (alternates or is_next_answer):
            raise Unusable("wrong roles")
        waiting = len(turn.calls) if turn.role == "assistant" else waiting - 1
        before = turn.role
    last = turns[-1]
    if last.role != "assistant" or not (last.content or last.calls):
        raise Unusable("no answer")
    if not all(turn.content or turn.calls or turn.call_id for turn in turns):
        raise Unusable("empty question" if len(turns) == 2 else "empty messages")


@lru_cache(maxsize=16)  # asked for each row
def _roles(tags: Tags) -> Mapping[str, Role]:
    """Return what names a role: the tag that is mapped, or the usual names."""
    named: list[tuple[str | None, tuple[str, ...], Role]] = [
        (tags.user_tag, ("human", "user"), "user"),
        (tags.assistant_tag, ("gpt", "assistant"), "assistant"),
        (tags.observation_tag, ("observation", "tool", "function"), "tool"),
        (tags.function_tag, ("function_call",), "assistant"),
        (tags.system_tag, ("system", "developer"), "system"),
    ]
    usual = {n: role for tag, names, role in named if tag is None for n in names}
    return usual | {tag: role for tag, _, role in named if tag is not None}


def _keys(turn: dict[str, Any], tags: Tags) -> tuple[str, str]:
    """Return which keys of a turn hold role and content."""
    usual = ("from", "value") if "from" in turn else ("role", "content")
    return (tags.role_tag or usual[0], tags.content_tag or usual[1])


def _message(turn: Any, tags: Tags, roles: Mapping[str, Role]) -> Message:
    """Read one turn.

    Raises:
        Unusable: If it lacks role or content, calls tools in a wrong way, or holds what
            would be lost: OpenAI's wish that no loss is taken over it.
    """
    if not isinstance(turn, dict):
        raise Unusable("missing field")
    if turn.get("weight") == 0:
        raise Unusable("weight 0 is not kept")
    role_key, content_key = _keys(turn, tags)
    calls = turn_calls(turn)
    if role_key not in turn or not (content_key in turn or calls):
        raise Unusable("missing field")
    said = turn[role_key]
    role = roles.get(said) if isinstance(said, str) else None
    if role is None or (calls and role != "assistant"):
        raise Unusable("wrong roles")
    if not calls and _is_call(said, tags):
        calls = read_calls(turn[content_key], said)
        return Message(role=role, content="", calls=calls)
    content = as_text(turn.get(content_key))
    if role != "tool":
        return Message(role=role, content=content, calls=calls)
    name, call_id = as_label(turn.get("name")), as_label(turn.get("tool_call_id"))
    return Message(role=role, content=content, name=name, call_id=call_id)


def _is_call(said: str, tags: Tags) -> bool:
    """Say whether the content of a turn of this role is a call and no text."""
    is_text = said == (tags.assistant_tag or "assistant")
    return said == (tags.function_tag or "function_call") and not is_text
