"""An evaluation as a table for people: one line per type of row, before and after."""

from __future__ import annotations

from lazytrain.evaluated import EvalRecord


def by_type_table(record: EvalRecord) -> str:
    """Return exact match by row type, the whole last; ``-`` where nothing was asked."""
    lines = [f"{'type':<16} {'rows':>6} {'before':>8} {'after':>8}"]
    for kind, (correct, total) in record.by_type.items():
        before = record.before_by_type.get(kind)
        lines.append(_line(kind, total, before, (correct, total)))
    correct = sum(right for right, _ in record.by_type.values())
    earlier = list(record.before_by_type.values())
    whole = (
        (sum(right for right, _ in earlier), sum(total for _, total in earlier))
        if earlier
        else None
    )
    lines.append(_line("all", record.num_rows, whole, (correct, record.num_rows)))
    return "\n".join(lines)


def _line(
    kind: str, total: int, before: tuple[int, int] | None, after: tuple[int, int]
) -> str:
    return f"{kind:<16} {total:>6} {_percent(before):>8} {_percent(after):>8}"


def _percent(counts: tuple[int, int] | None) -> str:
    if counts is None or counts[1] == 0:
        return "-"
    return f"{100 * counts[0] / counts[1]:.2f} %"
