"""The command line: one file a verb, and nothing but options and printing in it.

What all verbs share is in :mod:`streamrec.cli.program`: the exit codes (0 done, 1 the data or the
remote side failed, 2 wrong usage or configuration, 130 Ctrl-C) and the one sentence that an error
becomes. Verbs import what they work with when they run, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``streamrec`` with the arguments of this process, and exit."""
    from streamrec.cli.program import run
    from streamrec.surroundings import hold_standard_streams

    hold_standard_streams()
    sys.exit(run(sys.argv[1:]))
