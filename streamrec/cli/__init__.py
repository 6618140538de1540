"""The command line: one file a verb, and nothing but options and printing in it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

INTERRUPTED = 130
"""The exit code after Ctrl-C: that of shells, 128 and the number of the signal."""


def main() -> None:
    """Run ``streamrec`` with the arguments of this process, and exit."""
    try:
        from streamrec.cli.program import run
        from streamrec.surroundings import hold_standard_streams, show_all_text

        hold_standard_streams()
        show_all_text()
    except KeyboardInterrupt:  # the imports take a while
        sys.exit(INTERRUPTED)
    with _interrupted_by_others() as received:
        code = run(sys.argv[1:])
    if received and code == INTERRUPTED:
        # Whoever sent the signal is told that it has ended the process.
        os.kill(os.getpid(), received[0])
    sys.exit(code)


@contextmanager
def _interrupted_by_others() -> Iterator[list[int]]:
    """Let signals that ask for the end interrupt as Ctrl-C does, so that nothing is left behind.

    Yields:
        The signals that came.
    """
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    # One that is ignored stays so, as nohup wants it.
    signals = signal.SIGTERM, signal.SIGHUP
    numbers = [one for one in signals if signal.getsignal(one) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
