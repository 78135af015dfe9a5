"""Chat templates: the tokenizer's own or a named one, and what they make of a row."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from jinja2 import TemplateError

from lazytrain.data.rows import Message, Row
from lazytrain.errors import InvalidInput

log = logging.getLogger(__name__)
PROBE: Final = Row(
    row_id=0, query="Question", response="Answer", original_question="", type=""
)
# What a template raises at a turn that it is not made for: the errors of jinja2, and of
# the methods and sums that it works out.
REFUSED: Final = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    LookupError,
)
_CHOOSE: Final = "choose template: plain, alpaca or chatml"

# Renders turns, with the words that ask for an answer if the second argument is true.
Draw = Callable[[Sequence[Message], bool], str]

# Named chat templates, for tokenizers that bring none or another one.
TEMPLATES: Final = {
    "plain": (
        "{% for message in messages %}{{ message['content'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "alpaca": (
        "{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
        "{% else %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}"
        "{{ '### Response:\n' }}{% endif %}{% endfor %}"
    ),
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
        "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}


def with_template(tokenizer: Any, name: str | None) -> Any:
    """Set a named chat template; without a name, keep the tokenizer's or use plain.

    Raises:
        InvalidInput: If no template has that name, or the tokenizer's own cannot
            render a question and its answer.
    """
    if name is not None:
        if name not in TEMPLATES:
            raise InvalidInput(
                "template", name, f"choose one of {', '.join(sorted(TEMPLATES))}"
            )
        tokenizer.chat_template = TEMPLATES[name]
    elif not tokenizer.chat_template:
        log.warning("the tokenizer has no chat template: plain is used; see template")
        tokenizer.chat_template = TEMPLATES["plain"]
    _check_template(tokenizer)
    return tokenizer


def _check_template(tokenizer: Any) -> None:
    """Refuse a template that leaves out what was asked or answered."""
    text = render(tokenizer, PROBE.messages, False)
    lost = [turn.role for turn in PROBE.messages if turn.content not in text]
    if lost:
        remedy = f"leaves out what the {lost[0]} says; {_CHOOSE}"
        raise InvalidInput("chat template", text, remedy)


def drawing(tokenizer: Any, tools: str) -> Draw:
    """Return how turns are rendered with a row's tools, errors as they come."""
    schemas = json.loads(tools) if tools else None
    return partial(_drawn, tokenizer, schemas)


def render(
    tokenizer: Any, messages: Sequence[Message], for_answer: bool, tools: str = ""
) -> str:
    """Return a conversation as text.

    Args:
        tokenizer: Holds the template; one that has none is given ``plain``.
        messages: The turns.
        for_answer: Whether the words that ask for an answer come last.
        tools: JSON text of function schemas, or empty.

    Raises:
        InvalidInput: If the template cannot render them.
    """
    if not tokenizer.chat_template:
        with_template(tokenizer, None)
    try:
        return drawing(tokenizer, tools)(messages, for_answer)
    except REFUSED as error:
        roles = ", ".join(message.role for message in messages)
        remedy = f"cannot be rendered ({error}); {_CHOOSE}, or leave such rows out"
        raise InvalidInput("chat template, turns", roles, remedy) from error


def _drawn(
    tokenizer: Any,
    schemas: list[dict[str, Any]] | None,
    messages: Sequence[Message],
    for_answer: bool,
) -> str:
    """Render turns; a template that cannot take arguments as objects is given text."""

    def draw(parse: Callable[[str], Any]) -> str:
        text: str = tokenizer.apply_chat_template(
            [_turn(message, parse) for message in messages],
            tools=schemas,
            tokenize=False,
            add_generation_prompt=for_answer,
        )
        return text

    try:
        return draw(json.loads)
    except TypeError:
        if not any(message.calls for message in messages):
            raise
        return draw(str)


def _turn(message: Message, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return a turn as templates know it, arguments as ``parse`` gives them."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {
                    "name": call.name,
                    "arguments": parse(call.arguments),
                },
            }
            for call in message.calls
        ]
    if message.name:
        turn["name"] = message.name
    if message.call_id:
        turn["tool_call_id"] = message.call_id
    return turn
