"""Hashes of a stage's code, so that Snakemake re-runs what a change touches.

The hash is taken over the syntax tree: comments, layout and docstrings do not count,
because none of them can change a result.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from lazytrain.errors import InvalidInput

ROOT = Path(__file__).parent
# Kernels are compiled from these; they are hashed as they are.
SOURCES = (".cpp", ".cu", ".h")


def modules(*names: str) -> Iterator[Path]:
    """Yield the source files of subpackages and modules, in a fixed order.

    Args:
        names: Dotted names below ``lazytrain``, such as ``optim`` or ``commands.run``.

    Raises:
        InvalidInput: If a name is neither a package nor a module.
    """
    for name in names:
        base = ROOT.joinpath(*name.split("."))
        if base.is_dir():
            files = (p for p in base.rglob("*") if p.suffix in (".py", *SOURCES))
            yield from sorted(files)
        elif base.with_suffix(".py").is_file():
            yield base.with_suffix(".py")
        else:
            raise InvalidInput("fingerprint", name, "no such module below lazytrain")


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Return the tree with every docstring taken out."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def code_of(path: Path) -> bytes:
    """Return what counts in a file: its syntax tree, or its bytes if not Python."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ast.dump(without_docstrings(tree)).encode()


def fingerprint(*names: str) -> str:
    """Return twelve hex digits over the code that a stage runs."""
    digest = hashlib.sha256()
    for path in modules(*names):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(code_of(path) + b"\0")
    return digest.hexdigest()[:12]
