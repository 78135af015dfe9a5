"""The workflow's rules follow every module that their planning commands run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "workflow" / "rules" / "schedule.smk").read_text(encoding="utf-8")


def imported(name: str, known: set[str]) -> set[str]:
    """Return a module of the planner and those of the planner that it needs."""
    if name in known:
        return known
    known = known | {name}
    path = ROOT.joinpath("lazytrain", *name.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in found:
        package, _, module = (node.module or "").partition("lazytrain.schedule")
        if package or not node.module or "lazytrain.schedule" not in node.module:
            continue
        names = [module[1:]] if module else [alias.name for alias in node.names]
        for other in names:
            known = imported(f"schedule.{other}", known)
    return known


def test_the_check_follows_each_module_that_it_runs() -> None:
    _, _, rule = RULES.partition("\nrule check:")
    code, _, _ = rule.partition("shell:")
    listed = set(re.findall(r'"(schedule\.\w+)"', code))
    assert "schedule.check" in listed
    assert imported("schedule.check", set()) == listed


def test_posing_a_problem_follows_the_whole_planner() -> None:
    # The choice of an order solves both.
    _, _, rule = RULES.partition("\nrule derive_instance:")
    code, _, _ = rule.partition("shell:")
    assert 'code=fingerprint("schedule", "systems")' in code
