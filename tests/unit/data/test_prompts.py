"""What is supervised, under several templates; the built-in tokenizer."""

import pytest
from transformers import AutoTokenizer

from lazytrain.data.prompts import (
    IGNORE,
    TEMPLATES,
    encode,
    load_tokenizer,
    prompt_text,
    stop_token_ids,
    with_template,
)
from lazytrain.data.rows import Message, Row
from lazytrain.errors import InvalidInput


def _row(**changes):
    values = {
        "row_id": 0,
        "query": "How many ☃?",
        "response": "3 é\nThe answer is: 3",
        "original_question": "How many ☃?",
        "type": "AnsAug",
    }
    return Row(**(values | changes))


@pytest.fixture
def tokenizer():
    return load_tokenizer("random", 384)


def _supervised(tokenizer, encoded):
    labels = [label for label in encoded.labels if label != IGNORE]
    return tokenizer.decode(labels)


def test_the_answer_and_the_end_are_supervised_and_nothing_else(tokenizer):
    encoded = encode(_row(), tokenizer)
    assert _supervised(tokenizer, encoded) == "3 é\nThe answer is: 3<|end|>"
    prompt = tokenizer.decode(encoded.input_ids[: encoded.prompt_len])
    assert prompt == prompt_text(_row(), tokenizer)
    assert encoded.input_ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_supervises_exactly_the_answer(tokenizer, name):
    with_template(tokenizer, name)
    row = _row(history=(Message(role="system", content="Be brief."),))
    encoded = encode(row, tokenizer)
    text = _supervised(tokenizer, encoded)
    assert text.startswith("3 é\nThe answer is: 3")
    assert len(text) < len("3 é\nThe answer is: 3") + 20
    assert encoded.labels[-1] != IGNORE
    assert tokenizer.decode(encoded.input_ids).startswith(prompt_text(row, tokenizer))
    assert encoded.input_ids[-1] in stop_token_ids(tokenizer)


def _conversation(**changes):
    history = (
        Message(role="system", content="S"),
        Message(role="user", content="one?"),
        Message(role="assistant", content="ONE"),
        Message(role="tool", content="tool says"),
        Message(role="assistant", content="ALSO"),
    )
    return _row(history=history, response="LAST", **changes)


def test_all_assistant_turns_are_supervised(tokenizer):
    text = _supervised(tokenizer, encode(_conversation(), tokenizer))
    assert text == "ONE<|end|>ALSO<|end|>LAST<|end|>"


def test_mask_history_supervises_the_last_turn_only(tokenizer):
    text = _supervised(tokenizer, encode(_conversation(mask_history=True), tokenizer))
    assert text == "LAST<|end|>"


def test_train_on_prompt_supervises_everything(tokenizer):
    encoded = encode(_conversation(train_on_prompt=True), tokenizer)
    assert encoded.labels == encoded.input_ids


def test_a_template_that_rewrites_past_turns_supervises_what_is_there(tokenizer):
    # Such templates drop a turn's thoughts once it lies in the past.
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>"
        "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
        "{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    encoded = encode(_conversation(mask_history=True), tokenizer)
    assert _supervised(tokenizer, encoded) == "</think>LAST<|end|>"


def test_any_text_survives_the_built_in_tokenizer(tokenizer, tmp_path):
    text = "é ☃ 😀 \x00\x7f \t\n  two  spaces 中文 \u202e"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(text)["input_ids"] == ids
    assert again.chat_template == tokenizer.chat_template
    assert again.eos_token_id == tokenizer.eos_token_id


def test_bad_tokenizers_and_templates(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="262 tokens"):
        load_tokenizer("random", 261)
    with pytest.raises(InvalidInput, match="holds no tokenizer"):
        load_tokenizer(str(tmp_path), 384)
    with pytest.raises(InvalidInput, match="byte-level"):
        load_tokenizer("nobody/no-such-model", 384)
    with pytest.raises(InvalidInput, match="alpaca, chatml, plain"):
        with_template(tokenizer, "unknown")
