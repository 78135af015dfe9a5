"""Claims against measurements: ``results/compare.csv``.

Each claim is a function of records on one side and of printed values on the other; the
two meet only in the ratio and the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lazytrain.evaluated import EvalRecord
from lazytrain.records import Contract, RunRecord
from lazytrain.report.claims import Batches, Claim, Ratio, Spread, tolerance_text
from lazytrain.report.frames import Number, fixed, measured_number
from lazytrain.report.printed import (
    hardware_of,
    printed_table3,
    printed_table4,
    printed_table5,
)
from lazytrain.report.tables import by_run

Verdict = Literal["holds", "differs", "not measured"]


class CompareRow(Contract):
    """One claim on one accelerator."""

    claim: str
    accelerator: str
    device: str
    quantity: str
    measured: Number
    paper: Number
    ratio: Number
    tolerance: str
    verdict: Verdict
    remark: str


@dataclass(frozen=True)
class Evidence:
    """Everything a claim may look at."""

    runs: Sequence[RunRecord]
    evaluations: Sequence[EvalRecord]
    paper: Path


def quantity(claim: Claim) -> str:
    """Return what a claim measures, in words."""
    match claim.measure:
        case Ratio() as m:
            return f"{m.metric} at {m.scale}: {m.numerator} / {m.denominator}"
        case Spread(scale=scale):
            return f"spread of exact match at {scale}, points"
        case Batches() as m:
            return f"batch at {m.scale}: {m.system} - {m.than}"


def measured_value(claim: Claim, evidence: Evidence, accelerator: str) -> float | None:
    """Return the claim's measured value, or None where a run is missing."""
    found = by_run(evidence.runs)
    match claim.measure:
        case Ratio() as m:
            top = found.get((accelerator, m.scale, m.numerator))
            bottom = found.get((accelerator, m.scale, m.denominator))
            return quotient(*(measured_number(r, m.metric) for r in (top, bottom)))
        case Batches() as m:
            sizes = _batches(evidence, accelerator, m.scale, (m.system, m.than))
            return float(sizes[0] - sizes[1]) if len(sizes) == 2 else None
        case Spread(scale=scale):
            return spread(
                100 * record.exact_match
                for record in evidence.evaluations
                if (record.accelerator, record.scale) == (accelerator, scale)
                and record.status == "ok"
            )


def _batches(
    evidence: Evidence, accelerator: str, scale: str, systems: Sequence[str]
) -> list[int]:
    """Return the batches of those systems that ran."""
    found = by_run(evidence.runs)
    runs = [found.get((accelerator, scale, system)) for system in systems]
    return [run.batch for run in runs if run is not None and run.status == "ok"]


def paper_value(claim: Claim, paper: Path, hardware: str) -> float | None:
    """Return the paper's value of a claim, from its printed tables."""
    match claim.measure:
        case Ratio() as m:
            top = _printed(paper, hardware, m, m.numerator)
            return quotient(top, _printed(paper, hardware, m, m.denominator))
        case Batches() as m:
            rows = printed_table3(paper)
            sizes = [rows[hardware, m.scale, name].batch for name in (m.system, m.than)]
            return float(sizes[0]) - float(sizes[1])
        case Spread(scale=scale):
            return spread(
                float(text)
                for (at, _), text in printed_table4(paper).items()
                if at == scale
            )


def _printed(paper: Path, hardware: str, measure: Ratio, system: str) -> float | None:
    """Return one printed metric; the ablations are printed in Table 5 only."""
    scale = measure.printed_scale or measure.scale
    row = printed_table3(paper).get((hardware, scale, system))
    if row is None and scale == "27B" and hardware == "H800":
        row = printed_table5(paper).get(system)
    text = getattr(row, measure.metric, "")
    return float(text) if text and text != "OOM" else None


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    """Return a ratio, or None where a side is missing or zero."""
    return numerator / denominator if numerator and denominator else None


def spread(values: Iterable[float]) -> float | None:
    """Return the largest minus the smallest of at least two values."""
    found = list(values)
    return max(found) - min(found) if len(found) > 1 else None


def agrees(claim: Claim, measured: float, paper: float) -> bool:
    """Whether a measured value is within the claim's tolerance."""
    match claim.measure:
        case Ratio():
            return abs(measured / paper - 1) <= claim.tolerance
        case Batches():
            return abs(measured - paper) <= claim.tolerance
        case Spread():
            return measured <= claim.tolerance


def expected_hardware(claim: Claim) -> str:
    """Return the paper's machine that a claim is about."""
    return hardware_of(claim.accelerators[0]) if claim.accelerators else "H800"


def paper_values(claims: Sequence[Claim], paper: Path) -> dict[str, str]:
    """Return the paper's value of each claim, as text."""
    return {
        claim.id: fixed(paper_value(claim, paper, expected_hardware(claim)), 3)
        for claim in claims
    }


def compare(
    claims: Sequence[Claim], evidence: Evidence, accelerators: Sequence[str]
) -> list[CompareRow]:
    """Return one row per claim and accelerator.

    A stand-in is compared like any model: only ratios and differences are claimed, and
    the row's remark says that it stands in.
    """
    return [
        _row(claim, evidence, accelerator)
        for accelerator in accelerators
        for claim in claims
    ]


def _row(claim: Claim, evidence: Evidence, accelerator: str) -> CompareRow:
    """Return one comparison."""
    is_meant = not claim.accelerators or accelerator in claim.accelerators
    measured = measured_value(claim, evidence, accelerator) if is_meant else None
    paper = paper_value(claim, evidence.paper, expected_hardware(claim))
    verdict: Verdict = "not measured"
    if measured is not None and paper is not None:
        verdict = "holds" if agrees(claim, measured, paper) else "differs"
    return CompareRow(
        claim=claim.id,
        accelerator=accelerator,
        device=_device(evidence, accelerator),
        quantity=quantity(claim),
        measured=fixed(measured, 4),
        paper=fixed(paper, 4),
        ratio=fixed(quotient(measured, paper), 4),
        tolerance=tolerance_text(claim),
        verdict=verdict,
        remark=_remark(claim, evidence, accelerator, is_meant),
    )


def _device(evidence: Evidence, accelerator: str) -> str:
    """Return the devices that an accelerator's runs used."""
    names = {run.device for run in evidence.runs if run.accelerator == accelerator}
    return "; ".join(sorted(names)) or "n/a"


def _remark(claim: Claim, evidence: Evidence, accelerator: str, is_meant: bool) -> str:
    """Say what a reader must know before believing a verdict."""
    if not is_meant:
        return f"claimed for {', '.join(claim.accelerators)} only"
    said = (
        _stand_ins(claim, evidence, accelerator),
        _other_batches(claim, evidence, accelerator),
    )
    return "; ".join(remark for remark in said if remark)


def _stand_ins(claim: Claim, evidence: Evidence, accelerator: str) -> str:
    """Name the models that stand in for the claim's, or return nothing."""
    records: list[RunRecord | EvalRecord] = [*evidence.runs, *evidence.evaluations]
    stand_ins = {
        record.model
        for record in records
        if (record.accelerator, record.scale) == (accelerator, claim.measure.scale)
        and record.model != record.stands_for
    }
    if not stand_ins:
        return ""
    names = ", ".join(sorted(stand_ins))
    return f"{names} stands in: neither order nor size carries over"


def _other_batches(claim: Claim, evidence: Evidence, accelerator: str) -> str:
    """Say that the two sides of a ratio ran other batches, or return nothing."""
    if not isinstance(claim.measure, Ratio):
        return ""
    systems = (claim.measure.numerator, claim.measure.denominator)
    sizes = _batches(evidence, accelerator, claim.measure.scale, systems)
    if len(sizes) < 2 or sizes[0] == sizes[1]:
        return ""
    named = [f"{name} {size}" for name, size in zip(systems, sizes, strict=True)]
    return f"batches differ: {', '.join(named)}"
