"""What the checker reports: one broken rule at a time."""

from __future__ import annotations

from lazytrain.records import Contract


class Violation(Contract):
    """One broken rule: its kind and what is wrong, in words."""

    kind: str
    detail: str
