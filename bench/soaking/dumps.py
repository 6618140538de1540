"""Counts the tasks of a daemon's processes, from the dumps in its log."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.services import Daemon

TASKS = re.compile(r"(\d+) tasks \(")


class Dumps:
    """The dumps of a daemon whose log is JSON.

    Args:
        daemon: The daemon, which must outlive this.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._log = daemon.log.open()
        self._rest = ""

    def ask(self) -> None:
        """Ask each process of the daemon for a dump."""
        os.kill(self._daemon.pid, signal.SIGUSR1)

    def tasks(self) -> int:
        """Return the number of tasks in the dumps that were logged since the last call."""
        *lines, self._rest = (self._rest + self._log.read()).split("\n")
        messages = (json.loads(line)["message"] for line in lines)
        return sum(int(found[1]) for found in map(TASKS.match, messages) if found)

    def close(self) -> None:
        self._log.close()
