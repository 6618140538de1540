"""The command line: one file a verb, and nothing but options and printing in it."""

from __future__ import annotations

import sys

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
    sys.exit(run(sys.argv[1:]))
