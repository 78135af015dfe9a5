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
_BEGUN: Final = re.compile(r"[<\[/|\w]+\Z")  # a word or tag that is cut off


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
        asked = _words_end(draw, messages[:turn], turn - 1, for_answer=True)
        start = _agreed(before, asked, text, _words_end(draw, messages, turn - 1))
    if not text.startswith(after):
        said = _words_end(draw, messages[: turn + 1], turn)
        end = _agreed(after, said, text, _words_end(draw, messages, turn))
    return start, end


def _words_end(
    draw: Draw, messages: Sequence[Message], place: int, for_answer: bool = False
) -> int:
    """Return where a turn's words (the name of its last call) end in the rendering."""
    longer = list(messages)
    turn = longer[place]
    if turn.calls:
        *others, last = turn.calls
        last = last.model_copy(update={"name": last.name + MARK})
        longer[place] = turn.model_copy(update={"calls": (*others, last)})
    else:
        longer[place] = turn.model_copy(update={"content": turn.content + MARK})
    return _shared_len(draw(longer, for_answer), draw(messages, for_answer))


def _agreed(one: str, one_from: int, other: str, other_from: int) -> int:
    """Return where ``other`` stops to read, from a place on, as ``one`` does.

    The first letters of a tag are no agreement: ``<think>`` begins as ``<tool_call>``.
    """
    rest = one[one_from:]
    size = _shared_len(rest, other[other_from:])
    if size < len(rest):
        size = len(_BEGUN.sub("", rest[:size]))
    return other_from + size


def _shared_len(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    if other.startswith(one):
        return len(one)
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
