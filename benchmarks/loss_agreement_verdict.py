"""What the comparison of losses calls agreement: made from losses, master and state."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, Strict, model_validator

FACTOR = 3.0  # times the reference's own spread
EXEMPT = ("bf16", "bf16-stochastic")
VERDICT = (
    *("difference", "times_spread", "required", "agrees"),
    *("difference_from_8bit", "times_spread_from_8bit"),
)
Loss = Annotated[float, Strict()]
Curve = Annotated[list[Annotated[Loss, AllowInfNan(False)]], Field(min_length=1)]


class Found(BaseModel):
    """What a system's run left: losses, which may be NaN, or why there are none."""

    model_config = ConfigDict(extra="allow")

    losses: Annotated[list[Loss], Field(min_length=1)] = []
    master: str = ""
    optimizer_state: str = ""

    @model_validator(mode="after")
    def _says_its_formats(self) -> Found:
        if self.losses and not (self.master and self.optimizer_state):
            raise ValueError("losses need master and optimizer_state beside them")
        return self


class Recorded(BaseModel):
    """What a verdict is made from, in ``loss_agreement.json``; the rest is kept."""

    model_config = ConfigDict(extra="allow")

    model: str
    num_layers: int
    device: str
    reference: Annotated[dict[str, Curve], Field(min_length=1)]
    reference_8bit: Curve | None = None
    systems: dict[str, Found]

    @model_validator(mode="after")
    def _has_as_many_steps(self) -> Recorded:
        curves = [*self.reference.values(), self.reference_8bit or []]
        curves += [found.losses for found in self.systems.values()]
        if len({len(curve) for curve in curves if curve}) > 1:
            raise ValueError("some losses are of fewer steps than others")
        return self


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
        found: What the system's run left; verdicts of before are replaced.
        with_8bit: Losses of plain autograd with 8-bit moments, if it ran.
    """
    if "losses" not in found:
        return found
    mean, spread = summary(reference)
    kept = {name: value for name, value in found.items() if name not in VERDICT}
    agrees, gap, ratio = measured_from(mean, found["losses"], spread)
    verdict = {"difference": gap, "times_spread": ratio}
    verdict |= {"required": found["master"] not in EXEMPT, "agrees": agrees}
    own = own_reference(found, mean, with_8bit)
    if own is not mean:
        agrees, gap, ratio = measured_from(own, found["losses"], spread)
        verdict |= {"agrees": agrees, "difference_from_8bit": gap}
        verdict["times_spread_from_8bit"] = ratio
    return kept | verdict


def judged_again(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with everything that follows from its losses made anew."""
    curves, with_8bit = list(record["reference"].values()), record.get("reference_8bit")
    mean, spread = summary(curves)
    systems = {
        name: judged(curves, found, with_8bit)
        for name, found in record["systems"].items()
    }
    made = {"factor": FACTOR, "spread": max(spread), "systems": systems}
    if with_8bit is not None:
        made["reference_8bit_times_spread"] = measured_from(with_8bit, mean, spread)[2]
    return record | made


def own_reference(
    found: dict[str, Any], mean: list[float], with_8bit: list[float] | None
) -> list[float]:
    """Return plain autograd's losses with a row's own format of moments.

    Two hundredths in 8 bits count as fp32.
    """
    if with_8bit is None or found["optimizer_state"] != "8bit":
        return mean
    return with_8bit


def measured_from(
    losses: list[float], others: list[float], spread: list[float]
) -> tuple[bool, float | None, float | None]:
    """Return whether two curves agree, their largest difference, and it in spreads.

    None for a number that there is none of: a loss that is not finite agrees with
    nothing, and where the spread is 0 only equal losses agree.
    """
    gaps = distances(losses, others)
    if not all(math.isfinite(gap) for gap in gaps):
        return False, None, None
    gap, widest = max(gaps), max(spread)
    if widest == 0:
        return gap == 0, gap, None
    return gap <= FACTOR * widest, gap, gap / widest


def summary(reference: list[list[float]]) -> tuple[list[float], list[float]]:
    """Return the reference's mean loss and its spread at each step."""
    columns = list(zip(*reference, strict=True))
    # fsum: the built-in sum rounds otherwise from Python 3.12 on.
    mean = [math.fsum(column) / len(column) for column in columns]
    return mean, [max(column) - min(column) for column in columns]


def distances(losses: list[float], mean: list[float]) -> list[float]:
    """Return how far each loss is from the reference's mean."""
    return [abs(a - b) for a, b in zip(losses, mean, strict=True)]
