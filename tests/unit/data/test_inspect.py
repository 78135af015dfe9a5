"""Masked and supervised tokens are told apart by colour, or by marks without it."""

from tool_rows import ONE, SAME, row, speaking

from lazytrain.data.batches import Fit
from lazytrain.data.inspect import MOST_SHOWN, inspect_rows, measure, rendered
from lazytrain.data.prompts import encode, load_tokenizer
from lazytrain.data.rows import Message, Row

TOKENIZER = load_tokenizer("random", 384)
ROW = Row(
    row_id=3,
    query="and now ☃?",
    response="yes",
    original_question="q",
    type="t",
    history=(
        Message(role="user", content="first?"),
        Message(role="assistant", content="no"),
    ),
)


def test_colours_follow_the_labels():
    text = rendered(encode(ROW, TOKENIZER), TOKENIZER, "t")
    pieces = [(text.plain[s.start : s.end], str(s.style)) for s in text.spans]
    assert pieces == [
        ("<|user|>first?<|end|><|assistant|>", "dim red"),
        ("no<|end|>", "green"),
        ("<|user|>and now ☃?<|end|><|assistant|>", "dim red"),
        ("yes<|end|>", "green"),
    ]


def test_without_colours_marks_stand_around_supervised_text(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    inspect_rows([ROW], {}, TOKENIZER, 64)
    shown = capsys.readouterr().out
    assert "<|assistant|>⟦no<|end|>⟧<|user|>and now ☃?" in shown
    assert "supervised text stands between ⟦ and ⟧" in shown
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    inspect_rows([ROW], {}, TOKENIZER, 64)
    coloured = capsys.readouterr().out
    assert "⟦" not in coloured
    assert "32mno<|end|>\x1b[0m" in coloured


def test_a_call_is_green_and_what_the_tool_answers_is_red():
    tokenizer = speaking()
    text = rendered(encode(row(ONE), tokenizer), tokenizer, "t")
    pieces = [(text.plain[s.start : s.end], str(s.style)) for s in text.spans]
    assert [style for _, style in pieces] == ["dim red", "green"] * 2
    assert "Wetter eines Ortes ☂" in pieces[0][0]
    assert pieces[1][0].startswith('<call>{"name": "weather"')
    assert "rain ☔" in pieces[2][0]
    assert pieces[3][0] == "Yes ☔.<|end|>"


def test_rows_with_tools_are_shown_and_counted(capsys):
    rows = [ROW] * 5 + [row(ONE), row(SAME)]
    found = inspect_rows(rows, {}, speaking(), 4096, examples=2)
    counts = {
        "rows that describe tools": 2,
        "calls of tools": 2,
        "answers of tools": 2,
    }
    assert found.tools == counts
    shown = capsys.readouterr().out
    assert shown.count("first?") == 1
    assert '<call>{"name": "weather"' in shown
    assert all(what in shown for what in counts)
    assert inspect_rows(rows[:5], {}, speaking(), 4096).tools == {}
    assert "tools" not in capsys.readouterr().out


def test_lengths_and_drops_are_counted():
    rows = [ROW, ROW.model_copy(update={"response": "y" * 80})]
    found = measure(rows, TOKENIZER, Fit(64))
    assert found.lengths == [len(encode(row, TOKENIZER).input_ids) for row in rows]
    assert found.supervised == (2 + 1 + 3 + 1) + (2 + 1 + 80 + 1)
    assert found.counts == {"dropped, answer too long": 1}
    cut = measure(rows, TOKENIZER, Fit(64, allow_truncation=True))
    assert cut.counts == {"truncated": 1}


def test_a_very_long_row_is_shown_in_part():
    row = ROW.model_copy(update={"response": "y" * 1_000_000})
    text = rendered(encode(row, TOKENIZER), TOKENIZER, "t").plain
    assert len(text) < 2 * MOST_SHOWN
    # The end mark is a part of the stretch.
    left_out = 1_000_000 + len("<|end|>") - MOST_SHOWN
    assert f"{left_out} characters more" in text
