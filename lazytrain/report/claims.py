"""The paper's claims as typed data, and the table of them in ``ARTIFACT.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lazytrain.config import load_yaml
from lazytrain.errors import InvalidInput
from lazytrain.records import Contract
from lazytrain.report.markdown import table


class Ratio(Contract):
    """One metric of two systems at one scale, divided."""

    kind: Literal["ratio"]
    metric: Literal["tflops", "tokens_per_s"]
    scale: str
    numerator: str
    denominator: str
    printed_scale: str = Field(
        default="", description="the scale that the paper prints it for, if another"
    )


class Spread(Contract):
    """Largest minus smallest exact match over systems, in percentage points."""

    kind: Literal["spread"]
    scale: str


class Batches(Contract):
    """How much larger one system's batch is than another's, where both ran."""

    kind: Literal["batches"]
    scale: str
    system: str
    than: str


class Claim(Contract):
    """One statement of the paper and how to check it."""

    id: str = Field(pattern=r"^C\d+$")
    statement: str
    target: str = Field(description="the Snakemake target that shows it")
    cost: str
    measure: Annotated[Ratio | Spread | Batches, Field(discriminator="kind")]
    tolerance: float = Field(ge=0)
    accelerators: tuple[str, ...] = Field(
        default=(), description="where the claim is made; empty: everywhere"
    )


class Claims(Contract):
    """``config/claims.yaml``."""

    claims: tuple[Claim, ...]


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Read the claims.

    Raises:
        InvalidInput: If the file breaks the contract or an id is used twice.
    """
    claims = load_yaml(Claims, path).claims
    ids = [claim.id for claim in claims]
    for name in ids:
        if ids.count(name) > 1:
            raise InvalidInput("id", name, f"is used twice (in {path})")
    return claims


def tolerance_text(claim: Claim) -> str:
    """Return the tolerance in words."""
    if isinstance(claim.measure, Ratio):
        return f"ratio within {100 * claim.tolerance:g} % of the paper's"
    if isinstance(claim.measure, Spread):
        return f"at most {claim.tolerance:g} points"
    return "exact" if claim.tolerance == 0 else f"within {claim.tolerance:g}"


def claims_table(claims: tuple[Claim, ...], expected: dict[str, str]) -> str:
    """Return the Markdown table of claims.

    Args:
        claims: The claims, in order.
        expected: The paper's value by claim id.
    """
    header = (
        "claim",
        "statement",
        "command",
        "the paper's value",
        "tolerance",
        "cost",
    )
    rows = (
        (
            claim.id,
            claim.statement,
            f"`snakemake --cores all {claim.target}`",
            expected[claim.id],
            tolerance_text(claim),
            claim.cost,
        )
        for claim in claims
    )
    return table(header, rows)
