"""What a model will see of a data set: examples, masks, lengths, drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lazytrain.data.batches import Fit, fit_row
from lazytrain.data.prompts import IGNORE, Encoded, encode
from lazytrain.data.rows import Row

BINS: Final = 12
BAR_WIDTH: Final = 40
MOST_SHOWN: Final = 2000  # characters of one stretch of an example
# Around supervised text where no colour can tell it apart: a file, a pipe, NO_COLOR.
MARKS: Final = ("\u27e6", "\u27e7")


@dataclass(frozen=True)
class Inspection:
    """Token counts of the rows, and how many are dropped or cut at a length.

    Attributes:
        lengths: Tokens of each row.
        supervised: Tokens with a label.
        counts: Rows dropped or cut, by reason.
        tools: Rows that describe tools, calls and answers in all rows, by name; empty
            if no row has any.
    """

    lengths: list[int]
    supervised: int
    counts: dict[str, int] = field(default_factory=dict)
    tools: dict[str, int] = field(default_factory=dict)


def inspect_rows(
    rows: Sequence[Row],
    skipped: Mapping[str, int],
    tokenizer: Any,
    seq_len: int,
    examples: int = 3,
    *,
    allow_truncation: bool = False,
) -> Inspection:
    """Print examples, a histogram of lengths and the counts; return the numbers.

    The last example has tools if any row has. Without colours, supervised text stands
    between marks.
    """
    console = Console(soft_wrap=True, highlight=False)
    marks = MARKS if console.no_color or console.color_system is None else ("", "")
    if rows and examples and any(marks):
        console.print(f"supervised text stands between {marks[0]} and {marks[1]}")
    for row in _examples(rows, examples):
        console.print(rendered(encode(row, tokenizer), tokenizer, row.type, marks))
    fit = Fit(seq_len, allow_truncation=allow_truncation)
    result = measure(rows, tokenizer, fit)
    console.print(_histogram(result.lengths))
    console.print(_summary(result, skipped, seq_len))
    return result


def _examples(rows: Sequence[Row], number: int) -> list[Row]:
    shown = list(rows[:number])
    with_tools = next((row for row in rows if row.uses_tools), None)
    if shown and with_tools is not None and not any(r.uses_tools for r in shown):
        shown[-1] = with_tools
    return shown


def measure(rows: Sequence[Row], tokenizer: Any, fit: Fit) -> Inspection:
    """Tokenise every row and count lengths, drops and cuts."""
    lengths: list[int] = []
    supervised = 0
    counts: Counter[str] = Counter()
    for row in rows:
        encoded = encode(row, tokenizer)
        lengths.append(len(encoded.input_ids))
        supervised += sum(label != IGNORE for label in encoded.labels)
        kept, remark = fit_row(encoded, fit)
        if remark is not None:
            counts[remark if kept is not None else f"dropped, {remark}"] += 1
    return Inspection(
        lengths, supervised, dict(sorted(counts.items())), count_tools(rows)
    )


def count_tools(rows: Sequence[Row]) -> dict[str, int]:
    """Count what rows say of tools; empty if they say nothing."""
    turns = [turn for row in rows for turn in row.messages]
    counts = {
        "rows that describe tools": sum(bool(row.tools) for row in rows),
        "calls of tools": sum(len(turn.calls) for turn in turns),
        "answers of tools": sum(turn.role == "tool" for turn in turns),
    }
    return counts if any(counts.values()) else {}


def rendered(
    row: Encoded, tokenizer: Any, title: str, marks: tuple[str, str] = ("", "")
) -> Text:
    """Return a row's tokens as text: supervised ones green, masked ones dim.

    Args:
        row: The row.
        tokenizer: Decodes it.
        title: Stands behind its number.
        marks: Put around supervised text.
    """
    text = Text(f"row {row.row_id} ({title})\n", style="bold")
    start = 0
    while start < len(row.labels):
        masked = row.labels[start] == IGNORE
        end = start
        while end < len(row.labels) and (row.labels[end] == IGNORE) == masked:
            end += 1
        piece = tokenizer.decode(row.input_ids[start:end])
        left_out = len(piece) - MOST_SHOWN
        if left_out > 0:  # a row may be a whole book
            piece = f"{piece[:MOST_SHOWN]} ... {left_out} characters more"
        if not masked:
            piece = f"{marks[0]}{piece}{marks[1]}"
        text.append(piece, style="dim red" if masked else "green")
        start = end
    return text.append("\n")


def _histogram(lengths: Sequence[int]) -> Table:
    table = Table("tokens", "rows", "", title="length of rows", title_justify="left")
    width = max(1, -(-(max(lengths) + 1) // BINS))
    bins = Counter(length // width for length in lengths)
    for place in range(max(bins) + 1):
        bar = "#" * -(-BAR_WIDTH * bins[place] // max(bins.values()))
        span = f"{place * width}-{(place + 1) * width - 1}"
        table.add_row(span, str(bins[place]), bar)
    return table


def _summary(result: Inspection, skipped: Mapping[str, int], seq_len: int) -> Table:
    table = Table("what", "count", title="in all", title_justify="left")
    table.add_row("rows", str(len(result.lengths)))
    table.add_row("tokens", str(sum(result.lengths)))
    table.add_row("supervised tokens", str(result.supervised))
    for what, count in result.tools.items():
        table.add_row(what, str(count))
    for reason, count in sorted(skipped.items()):
        table.add_row(f"skipped, {reason}", str(count))
    for reason, count in result.counts.items():
        table.add_row(f"at {seq_len} tokens {reason}", str(count))
    return table
