"""Conversations as token ids, with the loss on the assistant's words only.

The whole conversation is rendered by the chat template and tokenised once; character
spans say which tokens are the assistant's, so that no token straddles a seam that the
model will not see at generation. Calls of tools are the assistant's words; what tools
answer, and their descriptions, are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lazytrain.data.rows import Row
from lazytrain.data.spans import assistant_spans, is_inside
from lazytrain.data.templates import (
    PROBE,
    TEMPLATES,
    render,
    with_template,
)
from lazytrain.data.tokenizer import byte_level_tokenizer, load_tokenizer
from lazytrain.data.tool_support import check_support

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

IGNORE: Final = -100  # the label that the loss skips, as in torch and transformers


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


def prompt_text(row: Row, tokenizer: Any) -> str:
    """Return the text that a model is given to answer a row.

    Raises:
        InvalidInput: If the template cannot render the row.
    """
    check_support(row, tokenizer)
    return render(tokenizer, row.messages[:-1], True, row.tools)


def encode(row: Row, tokenizer: Any) -> Encoded:
    """Tokenise a row's conversation and mark what is supervised.

    Every assistant turn is supervised, with the end token after it; only the last one
    under ``mask_history``, and everything under ``train_on_prompt``.

    Raises:
        InvalidInput: If the template cannot render the row, or leaves out its tools.
    """
    check_support(row, tokenizer)
    messages = row.messages
    draw = partial(render, tokenizer, tools=row.tools)
    text = draw(messages, False).rstrip()
    spans = assistant_spans(draw, messages, text, row.mask_history)
    tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = list(tokens["input_ids"])
    if row.train_on_prompt:
        labels = list(ids)
    else:
        offsets = tokens["offset_mapping"]
        labels = [
            token if is_inside(offset, spans) else IGNORE
            for token, offset in zip(ids, offsets, strict=True)
        ]
    if ids and ids[-1] not in tokenizer.all_special_ids:
        ids.append(tokenizer.eos_token_id)
        labels.append(tokenizer.eos_token_id)
    return Encoded(row.row_id, ids, labels)


def stop_token_ids(tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer: the end token and the template's own."""
    return sorted({tokenizer.eos_token_id, encode(PROBE, tokenizer).input_ids[-1]})
