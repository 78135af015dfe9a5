"""Child processes that tests end by signals."""

import signal


def default_signals() -> None:
    """Undo what ``nohup`` or a shell's ``&`` made the tests' own process ignore.

    Give it as ``preexec_fn``: a child inherits ignored signals, and Python then leaves
    SIGINT ignored too.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
