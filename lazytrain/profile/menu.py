"""Which save levels of a compiled layer are measured: what the planner chooses from."""

from __future__ import annotations

from collections.abc import Sequence

from lazytrain.errors import InvalidInput
from lazytrain.executor.bodies import BUDGETS

# Beyond these, neighbours differ by noise.
MENU = ("inputs", "keep-0.2", "keep-0.5", "all")


def menu_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the levels to measure, cheapest in bytes first; none named: the usual.

    Raises:
        InvalidInput: If a level is unknown, or ``inputs``, which every layer has, is
            left out.
    """
    if not names:
        return MENU
    unknown = [name for name in names if name not in BUDGETS]
    if unknown:
        raise InvalidInput("level", unknown[0], f"choose from {', '.join(BUDGETS)}")
    if "inputs" not in names:
        raise InvalidInput("level", ", ".join(names), "name `inputs` too")
    return tuple(name for name in BUDGETS if name in names)
