"""One check, one verdict, one remedy; and how they are run and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from lazytrain.records import Contract

Verdict = Literal["ok", "warn", "fail"]


class Check(Contract):
    """What was looked at, what was seen, and what to do where it is not well.

    ``warn`` means slower or smaller than it could be; ``fail`` means that some command
    of this package will stop.
    """

    name: str
    value: str
    verdict: Verdict
    remedy: str = ""


class Examination(Contract):
    """All checks of one machine."""

    checks: list[Check]

    @property
    def worst(self) -> Verdict:
        """The worst verdict among the checks."""
        order: tuple[Verdict, ...] = ("fail", "warn", "ok")
        seen = {check.verdict for check in self.checks}
        return next((verdict for verdict in order if verdict in seen), "ok")


def examine(scratch: Path, build_kernels: bool = True) -> Examination:
    """Look at everything; takes seconds, or minutes where a kernel must be compiled.

    Args:
        scratch: Folder that runs would use for their NVMe files.
        build_kernels: Whether to build the native optimizer kernels if they are not.
    """
    from lazytrain.doctor import disk, gpu, host, software

    probes: list[Callable[[], Iterable[Check]]] = [
        gpu.checks,
        host.checks,
        lambda: disk.checks(scratch),
        lambda: software.checks(build_kernels),
    ]
    return Examination(checks=[check for probe in probes for check in probe()])


def as_text(examination: Examination) -> str:
    """Return the checks as aligned lines, a remedy below each that needs one."""
    width = max(len(check.name) for check in examination.checks)
    lines = []
    for check in examination.checks:
        lines.append(f"{check.verdict:4}  {check.name:{width}}  {check.value}")
        if check.remedy:
            lines.append(f"{'':4}  {'':{width}}  -> {check.remedy}")
    return "\n".join(lines) + "\n"
