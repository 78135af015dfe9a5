"""Where the assistant's words stand in a rendered conversation.

A template may write a turn differently once it lies in the past (it drops thoughts, or
marks the last turn). What follows a turn's words is then looked for behind those words,
not at the same place from the text's start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lazytrain.data.rows import Message
from lazytrain.data.templates import Draw

Span = tuple[int, int]
MARK: Final = "\ue000"  # private use: no text has it, no template looks for it
# A word or tag whose letters two texts share, and what goes on with it in a text.
_BEGUN: Final = re.compile(r"[<\[]?[^\s<>\[\]]*\Z")
_GOES_ON: Final = re.compile(r"[^\s<\[]")


def assistant_spans(
    draw: Draw, messages: Sequence[Message], text: str, last_only: bool = False
) -> list[Span]:
    """Return the character spans of the assistant's turns, calls and end mark included.

    Args:
        draw: Renders turns.
        messages: All turns.
        text: Their rendering, without spaces at its end.
        last_only: Whether only the last of them is wanted.
    """
    turns = [n for n, message in enumerate(messages) if message.role == "assistant"]
    chosen = turns[-1:] if last_only else turns
    return [_span(draw, messages, text, turn) for turn in chosen]


def is_inside(part: Span, spans: Sequence[Span]) -> bool:
    """Say whether one of the spans holds a part wholly."""
    return any(start <= part[0] and part[1] <= end for start, end in spans)


def _span(draw: Draw, messages: Sequence[Message], text: str, turn: int) -> Span:
    """Return a turn's span: from where the prompt for it and the text part."""
    before = draw(messages[:turn], True)
    after = draw(messages[: turn + 1], False).rstrip()
    start, end = len(before), len(after)
    if not text.startswith(before):
        asked = draw(_longer(messages[:turn], turn - 1), True)
        whole = draw(_longer(messages, turn - 1), False)
        ends = _shared_len(before, asked), _shared_len(text, whole)
        start = _agreed(before, ends[0], text, ends[1])
    if not text.startswith(after):
        said = draw(_longer(messages[: turn + 1], turn), False)
        whole = draw(_longer(messages, turn), False)
        ends = _shared_len(after, said), _shared_len(text, whole)
        end = _agreed(after, ends[0], text, ends[1])
    return start, end


def _longer(messages: Sequence[Message], place: int) -> list[Message]:
    """Return turns one of which says more: where it does, its words end.

    Of a turn that calls tools, the name of its last call is longer.
    """
    longer = list(messages)
    turn = longer[place]
    if turn.calls:
        *others, last = turn.calls
        last = last.model_copy(update={"name": last.name + MARK})
        longer[place] = turn.model_copy(update={"calls": (*others, last)})
    else:
        longer[place] = turn.model_copy(update={"content": turn.content + MARK})
    return longer


def _agreed(one: str, one_from: int, other: str, other_from: int) -> int:
    """Return where ``other`` stops to read, from a place on, as ``one`` does.

    The first letters of a tag are no agreement: ``<think>`` begins as ``<tool_call>``.
    """
    ours, theirs = one[one_from:], other[other_from:]
    size = _shared_len(ours, theirs)
    if all(_GOES_ON.match(text[size:]) for text in (ours, theirs)):
        size = len(_BEGUN.sub("", ours[:size]))
    return other_from + size


def _shared_len(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    shared, most = 0, min(len(one), len(other))
    while shared < most:  # rows are long: halves are compared, not characters
        middle = (shared + most + 1) // 2
        if one[shared:middle] == other[shared:middle]:
            shared = middle
        else:
            most = middle - 1
    return shared
