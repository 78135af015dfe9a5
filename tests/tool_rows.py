"""Records with tools, a chat template that renders them, and one that drops them."""

from __future__ import annotations

import copy
import json
from typing import Any

from lazytrain.data.metamath import normalise_records
from lazytrain.data.prompts import IGNORE, byte_level_tokenizer, encode
from lazytrain.data.rows import Row

RENDERS = (
    "{% if tools %}{{ '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "{{ '[' + m.name + '] ' if m.role == 'tool' and m.name else '' }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{{ '<call>' + ({'name': call.function.name, "
    "'arguments': call.function.arguments} | tojson) + '</call>' }}"
    "{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
DROPS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

WEATHER = {
    "name": "weather",
    "description": "Wetter eines Ortes ☂",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SCHEMAS = [{"type": "function", "function": WEATHER}]
CITY = {"city": "Zürich 大", "days": 2}


def call(arguments: Any, name: str = "weather", **more: Any) -> dict[str, Any]:
    """Return one of OpenAI's calls."""
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | more


def openai(*turns: dict[str, Any], tools: Any = SCHEMAS) -> dict[str, Any]:
    """Return a record of OpenAI's shape."""
    return {"messages": copy.deepcopy(list(turns)), "tools": copy.deepcopy(tools)}


def asked(text: str) -> dict[str, Any]:
    """Return a user's turn."""
    return {"role": "user", "content": text}


def calls(*made: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    """Return an assistant's turn that calls tools."""
    return {"role": "assistant", "content": content, "tool_calls": list(made)}


def heard(text: str, **more: Any) -> dict[str, Any]:
    """Return a tool's turn."""
    return {"role": "tool", "content": text} | more


def said(text: str) -> dict[str, Any]:
    """Return an assistant's turn."""
    return {"role": "assistant", "content": text}


def sharegpt(*turns: tuple[str, Any], tools: Any = None) -> dict[str, Any]:
    """Return a record of sharegpt's shape, its tools as text."""
    talk = [{"from": who, "value": what} for who, what in turns]
    return {
        "conversations": talk,
        "tools": json.dumps([WEATHER]) if tools is None else tools,
    }


ONE = openai(
    asked("Rain?"),
    calls(call(json.dumps(CITY), id="abc")),
    heard("rain ☔", tool_call_id="abc"),
    said("Yes ☔."),
)
SAME = sharegpt(
    ("human", "Rain?"),
    ("function_call", json.dumps({"name": "weather", "arguments": CITY})),
    ("observation", "rain ☔"),
    ("gpt", "Yes ☔."),
)


def row(record: dict[str, Any], **changes: Any) -> Row:
    """Return the row of a record."""
    made = normalise_records([record], "test", needs_answer=False).rows[0]
    return made.model_copy(update=changes)


def speaking(template: str = RENDERS) -> Any:
    """Return a tokenizer with a template."""
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def supervised(of: Row, template: str = RENDERS) -> str:
    """Return the text that a loss is taken over."""
    tokenizer = speaking(template)
    encoded = encode(of, tokenizer)
    return str(tokenizer.decode([n for n in encoded.labels if n != IGNORE]))


def masked(of: Row, template: str = RENDERS) -> str:
    """Return the text that no loss is taken over."""
    tokenizer = speaking(template)
    encoded = encode(of, tokenizer)
    pairs = zip(encoded.input_ids, encoded.labels, strict=True)
    return str(tokenizer.decode([n for n, label in pairs if label == IGNORE]))
