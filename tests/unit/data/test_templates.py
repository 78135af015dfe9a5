"""A chat template that cannot serve is named with what to choose instead."""

from __future__ import annotations

import logging

import pytest

from lazytrain.data.prompts import encode, prompt_text, with_template
from lazytrain.data.rows import Message, Row
from lazytrain.data.tokenizer import byte_level_tokenizer
from lazytrain.errors import InvalidInput

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system role here') }}{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}"
)
ROW = Row(row_id=0, query="q", response="a", original_question="q", type="")


def speaking(template):
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.content }", "cannot be rendered"),
        ("{{ messages[0].content + 5 }}", "cannot be rendered"),
        ("{{ nothing.at.all }}", "cannot be rendered"),
        ("{{ messages[0].content.index('?') }}", "cannot be rendered"),
        ("{{ 1 / (messages | length - 2) }}", "cannot be rendered"),
        ("hello", "leaves out what the user says"),
        ("{{ messages[0].content }}", "leaves out what the assistant says"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_before_training(template, reason):
    with pytest.raises(InvalidInput, match=f"{reason}.*choose template: plain"):
        with_template(speaking(template), None)


def test_a_turn_that_a_template_refuses_is_named():
    tokenizer = with_template(speaking(NO_SYSTEM), None)
    assert encode(ROW, tokenizer).input_ids
    asked = ROW.model_copy(update={"history": (Message(role="system", content="s"),)})
    for render in (encode, prompt_text):
        with pytest.raises(InvalidInput, match=r"system, user.*no system role here"):
            render(asked, tokenizer)


def test_a_template_that_refuses_only_the_turns_before_an_answer_is_named():
    picky = (
        "{% if messages | length == 3 %}{{ raise_exception('three turns') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    )
    earlier = (
        Message(role="user", content="x"),
        Message(role="assistant", content="y"),
    )
    with pytest.raises(InvalidInput, match=r"user, assistant, user'.*three turns"):
        encode(ROW.model_copy(update={"history": earlier}), speaking(picky))


def test_a_tokenizer_without_a_template_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        with_template(speaking(None), None)
        with_template(speaking(None), "chatml")
    assert caplog.messages == [
        "the tokenizer has no chat template: plain is used; see template"
    ]
