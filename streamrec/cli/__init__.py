"""The command line: one file a verb, and nothing but options and printing in it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``streamrec`` with the arguments of this process, and exit."""
    from streamrec.cli.program import run
    from streamrec.surroundings import hold_standard_streams

    hold_standard_streams()
    sys.exit(run(sys.argv[1:]))
