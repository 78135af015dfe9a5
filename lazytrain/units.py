"""Bytes, seconds and rates: parsed and printed in one place.

Integers are bytes, floats are seconds or bytes per second. ``GB`` is 1e9 bytes and
``GiB`` is 2**30: the paper mixes them, we do not.
"""

from __future__ import annotations

import math
import re
from typing import Final

from lazytrain.errors import InvalidInput

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

_FACTORS: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 2**40,
}
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def gib(value: float) -> int:
    """Return ``value`` GiB in whole bytes, rounded down."""
    return math.floor(value * GIB)


def parse_bytes(text: str, field: str = "size") -> int:
    """Parse ``80GiB`` or ``15 GB`` into bytes.

    Args:
        text: A number followed by a unit; a bare number is refused.
        field: Name used in the error.

    Raises:
        InvalidInput: If the unit is missing or unknown.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _FACTORS:
        units = ", ".join(_FACTORS)
        raise InvalidInput(field, text, f"write a number and a unit ({units})")
    return math.floor(float(match[1]) * _FACTORS[match[2]])


def parse_rate(text: str, field: str = "rate") -> float:
    """Parse ``12GB/s`` into bytes per second; zero is refused.

    Raises:
        InvalidInput: If the unit is missing or the rate is not positive.
    """
    if not text.strip().endswith("/s"):
        raise InvalidInput(field, text, "write a rate with its unit, such as 12GB/s")
    rate = float(parse_bytes(text.strip().removesuffix("/s"), field))
    if rate <= 0:
        raise InvalidInput(field, text, "a rate must be above zero")
    return rate


def format_bytes(value: int) -> str:
    """Return bytes in GiB, or MiB below one GiB, for people."""
    if value >= GIB:
        return f"{value / GIB:.2f} GiB"
    return f"{value / MIB:.1f} MiB"


def format_rate(bytes_per_s: float) -> str:
    """Return a rate in GB/s for people."""
    return f"{bytes_per_s / 1e9:.2f} GB/s"
