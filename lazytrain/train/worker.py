"""The process of one run: reads a request, runs it, leaves its record.

Used for DeepSpeed's rows and for probes of the largest batch, where a failure must not
take the caller with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lazytrain.errors import LazyTrainError
from lazytrain.records import read
from lazytrain.train.request import RunRequest
from lazytrain.train.run import run_row
from lazytrain.train.subprocess_run import end_with_parent, is_worker


def main(arguments: list[str]) -> int:
    """Run the request in the file named first; return the exit code."""
    if is_worker():  # started by hand, it has no pipe of a parent to watch
        end_with_parent(sys.stdin.buffer)
    try:
        run_row(read(RunRequest, Path(arguments[0])))
    except LazyTrainError as error:
        sys.stderr.write(f"lazytrain: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
