"""Calls are supervised, answers are not, and what a template drops is noticed."""

from __future__ import annotations

import json
import logging

import pytest
from tool_rows import (
    DROPS,
    ONE,
    RENDERS,
    SAME,
    SCHEMAS,
    asked,
    call,
    calls,
    heard,
    masked,
    openai,
    row,
    said,
    sharegpt,
    speaking,
    supervised,
)

from lazytrain.data.prompts import TEMPLATES, encode, prompt_text, with_template
from lazytrain.data.registry import Mixture, load_mixture
from lazytrain.data.tool_support import supported
from lazytrain.errors import InvalidInput

CALL = (
    '<call>{"name": "weather", "arguments": {"city": "Zürich 大", "days": 2}}</call>'
    "<|end|>"
)
TOOLS = f"<|system|>{json.dumps(SCHEMAS, ensure_ascii=False)}<|end|>"


@pytest.mark.parametrize("record", [ONE, SAME])
def test_calls_are_supervised_and_answers_are_not(record):
    made = row(record)
    assert supervised(made) == f"{CALL}Yes ☔.<|end|>"
    assert masked(made) == (
        f"{TOOLS}<|user|>Rain?<|end|><|assistant|>"
        "<|tool|>[weather] rain ☔<|end|><|assistant|>"
    )


def test_a_prompt_holds_tools_calls_and_answers():
    assert prompt_text(row(ONE), speaking()) == (
        f"{TOOLS}<|user|>Rain?<|end|><|assistant|>{CALL}"
        "<|tool|>[weather] rain ☔<|end|><|assistant|>"
    )


def test_a_call_may_be_the_last_word():
    made = row(openai(asked("Rain?"), ONE["messages"][1]))
    assert supervised(made) == CALL
    assert prompt_text(made, speaking()).endswith("Rain?<|end|><|assistant|>")


def test_masks_of_the_history_and_of_nothing():
    made = row(ONE)
    assert supervised(row(ONE, mask_history=True)) == "Yes ☔.<|end|>"
    assert masked(row(ONE, train_on_prompt=True)) == ""
    assert masked(made).count("rain ☔") == 1


TALK = openai(
    {"role": "system", "content": "Be brief."},
    asked("A and B?"),
    calls(call({"city": "A"}), call({"city": "B"}), content="I look."),
    heard("rain"),
    heard("sun"),
    said("Rain, sun."),
    asked("And C? 🦕"),
    calls(call({"city": "C"})),
    heard("snow"),
    said("Snow."),
)
SPOKEN = (
    'I look.<call>{"name": "weather", "arguments": {"city": "A"}}</call>'
    '<call>{"name": "weather", "arguments": {"city": "B"}}</call><|end|>'
    "Rain, sun.<|end|>"
    '<call>{"name": "weather", "arguments": {"city": "C"}}</call><|end|>'
    "Snow.<|end|>"
)


def test_parallel_calls_in_several_turns():
    made = row(TALK)
    assert supervised(made) == SPOKEN
    for answer in ("rain", "sun", "snow"):
        assert f"<|tool|>[weather] {answer}<|end|>" in masked(made)


# As templates of thinking models do: an empty thought in the last turn alone, and one
# that is begun for the model in a prompt.
THINKS = RENDERS.replace(
    "{{ '[' + m.name",
    "{{ '<think></think>' if m.role == 'assistant' and loop.last else '' }}"
    "{{ '[' + m.name",
)
BEGINS = THINKS.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|><think>' }}")


def test_calls_in_turns_that_a_template_rewrites_are_supervised():
    made = row(TALK)
    thought = SPOKEN.replace("Snow.", "<think></think>Snow.")
    assert supervised(made, THINKS) == thought
    assert supervised(made, BEGINS) == SPOKEN.replace("Snow.", "</think>Snow.")
    plain = row(openai(asked("q"), said("<table>"), asked("r"), said("b"), tools=None))
    assert supervised(plain, BEGINS) == "<table><|end|></think>b<|end|>"


# DeepSeek's template wants the text of the arguments.
TEXT = RENDERS.replace(
    "({'name': call.function.name, 'arguments': call.function.arguments} | tojson)",
    "call.function.name + ': ' + call.function.arguments",
)


def test_a_template_that_wants_arguments_as_text_is_given_text():
    made = row(ONE)
    assert supervised(made, TEXT) == (
        '<call>weather: {"city": "Zürich 大", "days": 2}</call><|end|>Yes ☔.<|end|>'
    )


DESCRIBED = openai(asked("q"), said("a"))
NO_TOOLS = openai(asked("q"), calls(call({})), heard("x"), said("a"), tools=None)
BESIDE = openai(asked("q"), calls(call({}), content="I look."), heard("x"), said("a"))
PARALLEL = openai(asked("q"), calls(call({"n": 1}), call({"n": 2})))
HEARD = openai(asked("q"), said("look()"), heard("x"), said("a"), tools=None)
FIRST = RENDERS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
SINGLE = RENDERS.replace(
    "{% for call",
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call') }}"
    "{% endif %}{% for call",
)
SILENT = RENDERS.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")
SPLITS = RENDERS.replace(
    "{{ m.content }}", "{{ m.content }}{{ m.content.index('?') if m.role == 'tool' }}"
)
DEAF = (
    "{% for m in messages if m.role != 'tool' %}{{ '<|' + m.role + '|>' + m.content }}"
    "{{ '<|end|>' }}{% endfor %}"
)
LEAVES_OUT = [
    (DROPS, DESCRIBED, "leaves out tools"),
    (DROPS, ONE, "leaves out tools"),
    (DROPS, NO_TOOLS, "leaves out calls of tools"),
    (FIRST, PARALLEL, "leaves out calls of tools"),
    (SILENT, BESIDE, "leaves out text beside a call"),
    (DEAF, HEARD, "leaves out what tools answer"),
    (SINGLE, PARALLEL, "refuses it: one call"),
    (SPLITS, ONE, "refuses it: substring not found"),
]


@pytest.mark.parametrize(("template", "record", "reason"), LEAVES_OUT)
def test_what_a_template_leaves_out_is_noticed(template, record, reason):
    tokenizer = speaking(template)
    plain = row({"query": "q", "response": "a"})
    good = row(openai(asked("q"), said("a"), tools=None))
    rows = [plain, row(record), good]
    kept, lost = supported(rows, tokenizer)
    assert kept == [plain, good]
    assert lost == {f"chat template {reason}": 1}
    for use in (encode, prompt_text):
        with pytest.raises(InvalidInput, match=f"{reason}.*no named template renders"):
            use(row(record), tokenizer)


def test_a_row_that_a_template_refuses_is_counted_by_the_templates_words():
    """Some want ids of nine letters: what is numbered here has as many."""
    strict = RENDERS.replace(
        "{% for call in m.tool_calls or [] %}",
        "{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
        "{{ raise_exception('ids have nine letters') }}{% endif %}",
    )
    kept, lost = supported([row(ONE), row(SAME)], speaking(strict))
    assert kept == [row(SAME)]
    assert lost == {"chat template refuses it: ids have nine letters": 1}


# Text that stands beside a call comes behind the answer, in a turn of its own or glued
# to what the assistant says next.
LATE = SILENT.replace(
    "{{ '<|end|>' }}{% endfor %}",
    "{{ messages[loop.index0 - 1].content if m.role == 'tool' }}"
    "{{ '<|end|>' }}{% endfor %}",
)
GLUED = (
    "{{ tools | tojson if tools }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ '<answer>' + m.content + '</answer>' }}"
    "{{ messages[loop.index0 - 1].content }}"
    "{% elif m.tool_calls %}{{ '<|assistant|>' + (m.tool_calls | tojson) }}"
    "{{ '' if loop.last else '<wait>' }}"
    "{% elif loop.previtem and loop.previtem.role == 'tool' %}"
    "{{ m.content + '<|end|>' }}"
    "{% else %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}"
    "{% if loop.last and m.role == 'tool' %}<|end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", [LATE, GLUED])
def test_a_template_that_puts_a_text_behind_the_answer_is_noticed(template):
    assert template != SILENT
    lost = supported([row(BESIDE)], speaking(template))[1]
    assert lost == {"chat template does not tell the assistant's turns apart": 1}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_no_named_template_renders_tools(name):
    tokenizer = with_template(speaking(), name)
    kept, lost = supported([row(ONE)], tokenizer)
    assert (kept, lost) == ([], {"chat template leaves out tools": 1})
    assert supported([row(HEARD)], tokenizer) == ([row(HEARD)], {})


def _file(tmp_path, name, *records):
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def test_a_data_set_counts_what_its_template_leaves_out(tmp_path, caplog):
    plain = sharegpt(("human", "q"), ("gpt", "a"), tools="")
    path = _file(tmp_path, "a.jsonl", ONE, plain, SAME, openai(asked("q")))
    with caplog.at_level(logging.WARNING):
        loaded = load_mixture(Mixture(dataset=path), speaking(DROPS))
    assert [made.query for made in loaded.rows] == ["q"]
    assert loaded.skipped == {"chat template leaves out tools": 2, "no answer": 1}
    assert "leaves out tools: 2; no named template renders descriptions" in caplog.text
    assert len(load_mixture(Mixture(dataset=path), speaking()).rows) == 3


def test_a_data_set_of_which_nothing_is_left_is_refused(tmp_path):
    path = _file(tmp_path, "a.jsonl", ONE, SAME)
    with pytest.raises(InvalidInput, match=r"no row is left \(.*tools: 2\); no named"):
        load_mixture(Mixture(dataset=path), speaking(DROPS))


def test_data_sets_are_mixed_from_the_rows_that_are_left(tmp_path):
    one = _file(
        tmp_path, "one.jsonl", *[{"query": f"{n}", "response": "a"} for n in "abcd"]
    )
    plain = openai(asked("q"), said("a"), tools=None)
    two = _file(tmp_path, "two.jsonl", ONE, ONE, plain, plain)
    mixture = Mixture(dataset={one: 1.0, two: 1.0})
    loaded = load_mixture(mixture, speaking(DROPS))
    assert sum(made.query == "q" for made in loaded.rows) == 2
    assert len(loaded.rows) == 4
    assert loaded.skipped == {f"{two}: chat template leaves out tools": 2}
