"""What the comparison of losses calls agreement: a function of the losses alone."""

from __future__ import annotations

from typing import Any

FACTOR = 3.0  # times the reference's own spread
EXEMPT = ("bf16", "bf16-stochastic")


def judged(
    reference: list[list[float]],
    found: dict[str, Any],
    with_8bit: list[float] | None = None,
) -> dict[str, Any]:
    """Add a system's distance from the reference's mean, and whether it agrees.

    A row with all moments in 8 bits gets its distance from plain autograd with such
    moments too, and that one says whether it agrees: what lies between the two
    references is the format's, whoever computes it.

    Args:
        reference: Losses of each micro-batch size, moments in fp32.
        found: What the system's run left.
        with_8bit: Losses of plain autograd with 8-bit moments, if it ran.
    """
    if "losses" not in found:
        return found
    mean, spread = summary(reference)
    gap = distance(found["losses"], mean)
    verdict: dict[str, Any] = {
        "difference": gap,
        "times_spread": _in_spreads(gap, spread),
        "required": found["master"] not in EXEMPT,
        "agrees": _in_spreads(gap, spread) <= FACTOR,
    }
    own = own_reference(found, mean, with_8bit)
    if own is not mean:
        gap = distance(found["losses"], own)
        verdict["difference_from_8bit"] = gap
        verdict["times_spread_from_8bit"] = _in_spreads(gap, spread)
        verdict["agrees"] = _in_spreads(gap, spread) <= FACTOR
    return found | verdict


def judged_again(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its verdicts made from its losses anew."""
    curves, with_8bit = list(record["reference"].values()), record.get("reference_8bit")
    systems = {
        name: judged(curves, found, with_8bit)
        for name, found in record["systems"].items()
    }
    return record | {"systems": systems}


def own_reference(
    found: dict[str, Any], mean: list[float], with_8bit: list[float] | None
) -> list[float]:
    """Return plain autograd's losses with a row's own format of moments.

    Two hundredths in 8 bits count as fp32.
    """
    if with_8bit is None or found["optimizer_state"] != "8bit":
        return mean
    return with_8bit


def _in_spreads(gap: float, spread: list[float]) -> float:
    """Return a distance as a multiple of the reference's own spread."""
    return gap / max(spread) if max(spread) else float(gap > 0)


def distance(losses: list[float], others: list[float]) -> float:
    """Return the largest difference of one step."""
    return max(distances(losses, others))


def summary(reference: list[list[float]]) -> tuple[list[float], list[float]]:
    """Return the reference's mean loss and its spread at each step."""
    columns = list(zip(*reference, strict=True))
    mean = [sum(column) / len(column) for column in columns]
    return mean, [max(column) - min(column) for column in columns]


def distances(losses: list[float], mean: list[float]) -> list[float]:
    """Return how far each loss is from the reference's mean."""
    return [abs(a - b) for a, b in zip(losses, mean, strict=True)]
