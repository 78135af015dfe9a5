"""The ``lazytrain`` console command: one subcommand per stage of the pipeline.

Command modules are imported when their command runs, so that ``--help`` is fast and a
missing optional package stops only the command that needs it.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from lazytrain.errors import LazyTrainError

# command name -> module below lazytrain.commands that defines `app`
COMMANDS = {
    "data": "data",
    "profile": "profile",
    "instance": "schedule",
    "solve": "schedule",
    "check": "schedule",
    "simulate": "schedule",
    "render": "schedule",
    "published": "schedule",
    "compare": "schedule",
    "tighten": "tight",
    "windows": "tight",
    "estimate": "estimate",
    "fit": "estimate",
    "run": "run",
    "sheet": "sheet",
    "operators": "sheet",
    "train": "train",
    "evaluate": "evaluate",
    "export": "export",
    "checkpoints": "export",
    "predict": "predict",
    "report": "report",
    "claims": "report",
    "doctor": "doctor",
    "clean": "doctor",
}


# Errors of the file system that are the user's to mend.
FILE_ERRORS = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EROFS,
)


class LazyGroup(TyperGroup):
    """Load the module of a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all command names in the order of the pipeline."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module: Any = importlib.import_module(
            f"lazytrain.commands.{COMMANDS[cmd_name]}"
        )
        group = typer.main.get_group(module.app)
        return group.get_command(ctx, cmd_name)


root = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=__doc__,
)


@root.callback()
def _root() -> None:
    """Plan, train, evaluate and report."""


def app() -> None:
    """Run the command line; a user's error is one line on stderr and exit code 2.

    A full disk and a path that cannot be read or written are the user's as well.
    """
    # OpenMP's workers spin by default: on cores that anything else uses, a step then
    # takes several times as long. Read when torch loads, so it is set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        root(prog_name="lazytrain")
    except LazyTrainError as error:
        sys.stderr.write(f"lazytrain: {error}\n")
        sys.exit(2)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        where = error.filename2 or error.filename or "writing a file"
        sys.stderr.write(f"lazytrain: {where}: {error.strerror}\n")
        sys.exit(2)
