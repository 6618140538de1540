"""The run of the daemon for ``streamrec serve``: its log, and its end with standard input."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

from streamrec.feeder import daemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config import DaemonSettings

__all__ = ["run"]


def run(settings: DaemonSettings, ready: Callable[[daemon.Bound], None], until_eof: bool) -> None:
    """Serve until a signal, or with ``until_eof`` until standard input ends."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if until_eof:
        threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()
    daemon.run(settings, ready)


def _watch_stdin() -> None:
    """End this process when standard input ends, with the process that started it."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
