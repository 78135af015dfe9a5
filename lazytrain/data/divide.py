"""From loaded rows to numbered rows and a manifest: drawn sides, or given ones."""

from __future__ import annotations

from lazytrain.data.metamath import LoadedRows
from lazytrain.data.rows import Row
from lazytrain.data.split import SplitSettings, given_split, split_rows
from lazytrain.records import SplitManifest


def divide(
    loaded: LoadedRows,
    how: SplitSettings,
    *,
    source: str,
    test: LoadedRows | None = None,
    test_source: str = "",
) -> tuple[list[Row], SplitManifest]:
    """Return rows numbered by place, and which of them train and which test.

    Args:
        loaded: The data set.
        how: How its rows are drawn, where no test rows are given.
        source: Its name.
        test: Test rows of a data set of their own; all of ``loaded`` then trains.
        test_source: Its name.

    Raises:
        InvalidInput: If rows cannot be divided, or a side is empty.
    """
    if test is None:
        rows = loaded.rows
        return rows, split_rows(rows, how, source=source, skipped=loaded.skipped)
    skipped = loaded.skipped | {
        f"test: {reason}": count for reason, count in test.skipped.items()
    }
    return given_split(
        loaded.rows,
        test.rows,
        source=f"{source}, test {test_source}",
        seed=how.seed,
        skipped=skipped,
    )
