"""Conversations as token ids, with the loss on the assistant's words only.

The whole conversation is rendered by the chat template and tokenised once; character
spans say which tokens are the assistant's, so that no token straddles a seam that the
model will not see at generation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import TemplateError

from lazytrain.data.rows import Message, Row
from lazytrain.data.tokenizer import byte_level_tokenizer, load_tokenizer
from lazytrain.errors import InvalidInput

__all__ = [
    "TEMPLATES",
    "Encoded",
    "byte_level_tokenizer",
    "encode",
    "load_tokenizer",
    "prompt_text",
    "stop_token_ids",
    "with_template",
]

log = logging.getLogger(__name__)
PROBE: Final = Row(
    row_id=0, query="Question", response="Answer", original_question="", type=""
)
_CHOOSE: Final = "choose template: plain, alpaca or chatml"
IGNORE: Final = -100  # the label that the loss skips, as in torch and transformers

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


@dataclass(frozen=True)
class Encoded:
    """One row as token ids; labels are ``-100`` wherever no loss is taken."""

    row_id: int
    input_ids: list[int]
    labels: list[int]

    @property
    def prompt_len(self) -> int:
        """Number of tokens before the first supervised one."""
        for place, label in enumerate(self.labels):
            if label != IGNORE:
                return place
        return len(self.labels)


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
    text = _render(tokenizer, PROBE.messages, False)
    lost = [turn.role for turn in PROBE.messages if turn.content not in text]
    if lost:
        remedy = f"leaves out what the {lost[0]} says; {_CHOOSE}"
        raise InvalidInput("chat template", text, remedy)


def prompt_text(row: Row, tokenizer: Any) -> str:
    """Return the text that a model is given to answer a row."""
    return _render(tokenizer, row.messages[:-1], True)


def encode(row: Row, tokenizer: Any) -> Encoded:
    """Tokenise a row's conversation and mark what is supervised.

    Every assistant turn is supervised, with the end token after it; only the last one
    under ``mask_history``, and everything under ``train_on_prompt``.
    """
    messages = row.messages
    text = _render(tokenizer, messages, False).rstrip()
    spans = _assistant_spans(tokenizer, messages, text, row.mask_history)
    tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = list(tokens["input_ids"])
    if row.train_on_prompt:
        labels = list(ids)
    else:
        offsets = tokens["offset_mapping"]
        labels = [
            token if _is_inside(offset, spans) else IGNORE
            for token, offset in zip(ids, offsets, strict=True)
        ]
    if ids and ids[-1] not in tokenizer.all_special_ids:
        ids.append(tokenizer.eos_token_id)
        labels.append(tokenizer.eos_token_id)
    return Encoded(row.row_id, ids, labels)


def stop_token_ids(tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer: the end token and the template's own."""
    return sorted({tokenizer.eos_token_id, encode(PROBE, tokenizer).input_ids[-1]})


def _render(tokenizer: Any, messages: Sequence[Message], for_answer: bool) -> str:
    if not tokenizer.chat_template:
        with_template(tokenizer, None)
    turns = [message.model_dump() for message in messages]
    try:
        text: str = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=for_answer
        )
    except (TemplateError, TypeError) as error:
        roles = ", ".join(message.role for message in messages)
        remedy = f"cannot be rendered ({error}); {_CHOOSE}, or leave such rows out"
        raise InvalidInput("chat template, turns", roles, remedy) from error
    return text


def _assistant_spans(
    tokenizer: Any, messages: Sequence[Message], text: str, last_only: bool
) -> list[tuple[int, int]]:
    """Return the character spans of the assistant's turns, end mark included.

    A template may write a turn differently once it lies in the past; a span starts
    where the prompt for it and the whole text part.
    """
    turns = [n for n, message in enumerate(messages) if message.role == "assistant"]
    spans = []
    for turn in turns[-1:] if last_only else turns:
        before = _render(tokenizer, messages[:turn], True)
        after = _render(tokenizer, messages[: turn + 1], False).rstrip()
        start = _shared_len(before, text)
        end = _shared_len(after, text)
        spans.append((start, end))
    return spans


def _shared_len(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    if other.startswith(one):
        return len(one)
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _is_inside(offset: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= offset[0] and offset[1] <= end for start, end in spans)
