"""Keys that are typed while a command shows something."""

from __future__ import annotations

import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIT = "qQ"


@contextmanager
def single_keys() -> Iterator[None]:
    """Have the terminal give each key at once, without Enter, and leave Ctrl-C as it is."""
    if not _is_terminal():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def is_quit_within(seconds: float) -> bool:
    """Wait for so many seconds; return True at once when ``q`` is typed."""
    if not _is_terminal():
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in QUIT:  # or "": the terminal is gone
                return True
    return False


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
